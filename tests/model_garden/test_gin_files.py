"""Gin files: how they are read, what in them is refused, and how they are stored with a run."""

import dataclasses
import subprocess
import sys
import textwrap

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.config import Config, apply_layers
from everstep.errors import UsageError
from everstep.extras import install_command
from everstep.model_garden.gin import bindings as gin_bindings
from everstep.model_garden.gin.reading import as_gin

pytestmark = pytest.mark.slow

DYNAMIC = "from __gin__ import dynamic_registration\nimport my_project.gin_parts as parts\nimport my_project\n"


@dataclasses.dataclass
class GinNamed(Config):
    name: str = "nobody"


def refused(act, *args, **kwargs) -> str:
    with pytest.raises(UsageError) as caught:
        act(*args, **kwargs)
    return str(caught.value)


def parts():
    return sys.modules["my_project.gin_parts"]


# ---- reading ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os", "import os: 'os' is refused"),
        ("\nfrom os import system", "from os import system: 'os.system' is refused"),
        ("import stranger as my_project", "'stranger' is refused"),
        ("from __gin__ import everything", "starts with an underscore"),
        ("import my_project\nfrom __gin__ import dynamic_registration", "before every other import (from a.gin:2)"),
        ("include 'a.gin'", "gin file a.gin: includes itself (from a.gin:1)"),
        ("include 'b.gin'", "gin file a.gin: includes itself (from b.gin:1)"),
        ("include 'none.gin'", "gin file none.gin: does not exist (from a.gin:1)"),
        ("include '/dev/zero'", "gin file /dev/zero: cannot be read: it is not a file"),
        ("include 'src'", "gin file src: cannot be read"),
        ("a.b = 1\na.b = lambda: 1", "a.gin, line 2: Failed to parse token 'lambda'"),
        ("a.b = __import__('os')", "a.gin, line 1"),
        ("a.b = [1, 2", "a.gin, line 2: EOF in multi-line statement"),
        ("a.b = " + "[" * 9999, "a.gin: gin cannot read it"),
        ("a.b = {[1]: 2}", "a.gin: gin cannot read it"),
        ("a.b = 0x" + "f" * 9999, "a.b: cannot be stored"),
        ("just words", "a.gin, line 1"),
    ],
)
def test_files_that_are_refused(project, text, reason):
    (project / "a.gin").write_text(text)
    (project / "b.gin").write_text("include 'a.gin'")
    assert reason in refused(gin_bindings.read, ["a.gin"])


def test_files_that_cannot_be_read(project):
    (project / "a.gin").write_bytes(b"a.b = '\xff'")
    assert "gin file a.gin: cannot be read" in refused(gin_bindings.read, ["a.gin"])
    assert "gin file b.gin: does not exist" in refused(gin_bindings.read, ["b.gin"])


def test_a_file_may_be_included_twice(project):
    (project / "a.gin").write_text("include 'b.gin'\nGinNamed.name = 'a'\ninclude 'b.gin'")
    (project / "b.gin").write_text("GinNamed.name = 'b'")
    assert apply_layers(GinNamed(), gin_bindings.read(["a.gin"]).layers(GinNamed())).name == "b"


def test_gin_is_not_needed_without_bindings():
    code = """
        import sys
        sys.modules["gin"] = None  # as if it were not installed
        from everstep.config import Config
        from everstep.model_garden.gin import bindings as gin_bindings
        from everstep.errors import UsageError
        bindings = gin_bindings.read([], [])
        bindings.apply(), gin_bindings.clear()
        print(bindings.layers(Config()), repr(bindings.text()), gin_bindings.operative_config(), bindings.backend())
        try:
            gin_bindings.read([], ["a.b = 1"])
        except UsageError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [
        "[] '' None None",
        f"reading gin bindings needs the package 'gin-config', which is not installed: {install_command('gin')}",
    ], done.stderr


# ---- storing ---------------------------------------------------------------------------------------------------------
def test_the_text_repeats_what_is_not_in_the_config(project):
    (project / "b.gin").write_text(f"{DYNAMIC}parts.unregistered.size = 9\n")
    (project / "a.gin").write_text(
        "import my_project.gin_parts\narea.width = 1\narea.width = 2\ninclude 'b.gin'\nh = 5\narea.height = %h\n"
        "GinNamed.name = 'me'\ns/Box.made_by = @unregistered()\n"
    )
    bindings = gin_bindings.read(["a.gin"])
    bindings.import_modules()
    text = bindings.text()
    again = gin_bindings.read(stored=[(text, "config.yaml:3")])
    assert again.text() == text
    assert "GinNamed" not in text
    assert "area.width = 1" not in text
    again.apply()
    with gin.config_scope("s"):
        assert (parts().area(), parts().Box().made_by) == (10, 9)


def test_what_was_stored_comes_first(project):
    stored = [("import my_project.gin_parts\narea.width = 1\narea.height = 2", "config.yaml:3")]
    gin_bindings.read([], ["area.width = 7"], stored=stored).apply()
    assert parts().area() == 14
    bad = [("\n\nimport stranger", "config.yaml:3")]
    assert refused(gin_bindings.read, stored=bad).endswith("(from config.yaml:3)")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(values)
def test_a_value_is_written_as_it_is_read(value):
    (binding,) = gin_bindings.read([], [f"a.b = {as_gin(value)}"])._bindings
    assert binding.value == value
    assert repr(binding.value) == repr(value)
    assert binding.text == as_gin(value)


@pytest.mark.parametrize("text", ["-1e999", "-2j", "'a\u2028b\x0cc'", "@a.b/c()", "(%x, )", "{@f: 'ü\\n'}"])
def test_values_that_python_writes_differently(text):
    (binding,) = gin_bindings.read([], [f"a.b = {text}"])._bindings
    (again,) = gin_bindings.read([], [f"a.b = {binding.text}"])._bindings
    assert again.value == binding.value
    assert "\u2028" not in text or binding.value == "a\u2028b\x0cc"
