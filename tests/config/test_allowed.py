"""The allowlist: a name leads only into what the project allows, and to what is defined there."""

import os
import subprocess
import sys

import pytest

from everstep.config.allowed import Allowed, import_allowed, require_module, resolve
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        resolve(name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        ("my_project.models.double", 6),
        ("my_project.models.triple", 9),
        ("my_project.models.net", 3),
        ("flat_module.answer", 42),
        ("trusted_lib.fetch", "fetched"),
        ("half_trusted.open.ready", 2),
        ("my_project.trusted_lib.fetch", "fetched"),
    ],
)
def test_what_the_project_allows(project, name, returns):
    found = resolve(name)
    assert (found() if name.endswith(("answer", "fetch", "ready")) else found(3)) == returns


def test_classes_their_methods_and_partials(project):
    net = resolve("my_project.models.Net")
    assert net(5).units == 5
    assert resolve("my_project.models.Net.wide")().units == 100
    assert resolve("my_project.models.quadruple")() == 8


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os.system", "'os' is neither source of this project"),
        ("stranger.wander", "'stranger' is neither source of this project"),
        ("half_trusted.closed", "'half_trusted' is neither"),
        ("my_project.os.system", "leads through the module 'os'"),
        ("my_project.os.path.join", "leads through the module 'os'"),
        ("my_project.run_anything", "it is subprocess.run, and 'subprocess'"),
        ("my_project.list_later", "it is posix.listdir, and 'posix'"),
        ("my_project.remember", "it is posix.system, and 'posix'"),
        ("my_project.writer", "it is pathlib.Path.write_text, and 'pathlib'"),
        ("my_project.Folder", "it is pathlib.Path, and 'pathlib'"),
        ("my_project.Folder.write_text", "leads through pathlib.Path"),
        ("my_project.models.TABLE", "an object of the class builtins.dict"),
        ("my_project.models.TABLE.update", "leads through an object of the class builtins.dict"),
        ("my_project.models.functools.partial", "leads through the module 'functools'"),
        ("my_project.models.Net.__init__", "starts with an underscore"),
        ("my_project.__builtins__.eval", "starts with an underscore"),
        ("__main__.anything", "starts with an underscore"),
        ("my_project.models", "it is a module"),
        ("my_project", "is a package"),
        ("", "expected a dotted name"),
        ("my_project..models", "expected a dotted name"),
        ("my_project.models.Net()", "expected a dotted name"),
        ("my-project.x", "expected a dotted name"),
        ("${oc.env:HOME}", "expected a dotted name"),
    ],
)
def test_what_the_project_does_not_allow(project, name, reason):
    assert reason in refused(name)


def test_a_refusal_says_what_to_do(project):
    text = refused("stranger.wander")
    assert 'add "stranger" to [tool.everstep] allow in pyproject.toml' in text
    assert str(project) in text
    (project / "pyproject.toml").write_text('[tool.everstep]\nallow = ["stranger"]\n')
    assert resolve("stranger.wander")() == 3


def test_what_is_refused_by_name_is_never_imported(project):
    for name in ("stranger.wander", "half_trusted.closed", "antigravity.geohash"):
        refused(name)
    with pytest.raises(UsageError):
        require_module("stranger")
    assert not {"stranger", "half_trusted", "antigravity"} & set(sys.modules)


@pytest.mark.parametrize("value", [None, 3, ["my_project.models.Net"], b"os.system"])
def test_a_name_is_text(value):
    assert "expected a dotted name" in refused(value)


def test_a_missing_name_gets_the_nearest_as_a_hint(project):
    assert "my_project.models" in refused("my_project.models.Nett")
    assert "did you mean 'Net'" in refused("my_project.models.Nett")
    assert "did you mean 'models'" in refused("my_project.modles.Net")


def test_an_error_inside_a_module_stays_what_it_is(project):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        resolve("my_project.broken.anything")


def test_modules(project):
    require_module("my_project.kept_apart")
    assert not hasattr(sys, "kept_apart_was_imported")
    assert import_allowed("my_project.models").double(2) == 4
    for name in ("my_project", "flat_module", "trusted_lib", "half_trusted.open", "everstep.recipes", "keras.layers"):
        require_module(name)


@pytest.mark.parametrize(
    "name", ["os", "half_trusted", "keras.utils", "keras.src.saving", "__gin__.x", "my_project._x"]
)
def test_modules_that_are_refused(project, name):
    with raises_problem(reason="refused"):
        require_module(name)


def test_a_module_that_is_not_there(project):
    with raises_problem(reason=r"Python finds no module 'my_project\.nothing'"):
        import_allowed("my_project.nothing")


def test_an_installed_package_of_the_same_name_as_a_folder_is_not_source(project):
    (project / "stranger").mkdir()  # Python takes the one with an __init__.py, elsewhere on its path
    assert "'stranger' is neither source" in refused("stranger.wander")


def test_the_standard_library_is_not_source_in_any_directory(project, monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.__file__))
    assert "'tokenize' is neither source" in refused("tokenize.open")


def test_installed_packages_are_not_source_in_any_directory(monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.path.dirname(pytest.__file__)))
    assert "'pytest' is neither source" in refused("pytest.main")


def test_the_root_is_the_nearest_pyproject(project, monkeypatch):
    deep = project / "notebooks" / "old"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert Allowed.here() == Allowed(project, ("trusted_lib", "half_trusted.open"))
    (project / "pyproject.toml").unlink()
    assert Allowed.here() == Allowed(deep)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("[tool.everstep]\nallow = 'my_lib'", {"key": "[tool.everstep] allow", "received": "my_lib"}),
        ("[tool.everstep]\nallow = ['my-lib']", {"key": "[tool.everstep] allow", "received": ["my-lib"]}),
        ("[tool.everstep]\nallow = [1]", {"key": "[tool.everstep] allow", "received": [1]}),
        ("[tool.everstep]\nalow = ['my_lib']", {"key": "[tool.everstep]", "received": {"alow": ["my_lib"]}}),
        ("[tool]\neverstep = 3", {"key": "[tool.everstep]", "received": 3}),
    ],
)
def test_a_malformed_pyproject(project, text, fields):
    path = project / "pyproject.toml"
    path.write_text(text)
    with raises_problem(origin=str(path), **fields):
        Allowed.here()
    path.write_text("[tool.everstep\n")
    with raises_problem(key=str(path), reason="cannot be read"):
        Allowed.here()


@pytest.mark.parametrize("text", ["", "tool = 3", "[tool.other]\nallow = 3"])
def test_a_pyproject_without_settings(project, text):
    (project / "pyproject.toml").write_text(text)
    assert Allowed.here().packages == ()


def test_deciding_needs_no_keras():
    code = (
        "import sys; from everstep.config.allowed import require_module, resolve\n"
        "require_module('keras.layers'); resolve('everstep.TrainerConfig')\n"
        "print('keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize(
    "name",
    [
        "keras.Sequential",
        "keras.layers.Dense",
        "keras.losses.MeanSquaredError",
        "keras.metrics.AUC",
        "keras.optimizers.AdamW",
        "keras.optimizers.schedules.CosineDecay",
        "keras.initializers.HeNormal",
        "keras.regularizers.L2",
        "keras.constraints.MaxNorm",
        "keras.activations.gelu",
        "everstep.Config",
        "everstep.TrainerConfig",
        "everstep.task.optim.config.OptimizationConfig",
        "everstep.Task",
        "everstep.task.classification.ClassificationTask",
    ],
)
def test_parts_of_keras_and_of_everstep(name):
    assert resolve(name).__name__ == name.rpartition(".")[2]


@pytest.mark.parametrize(
    "name",
    [
        "keras.layers.TFSMLayer",
        "keras.layers.Lambda",
        "keras.layers.StringLookup",
        "keras.layers.IntegerLookup",
        "keras.layers.TextVectorization",
        "keras.layers.TorchModuleWrapper",
        "keras.layers.JaxLayer",
        "keras.layers.FlaxLayer",
        "keras.layers.deserialize",
        "keras.layers.Dense.from_config",
        "keras.activations.get",
        "keras.models.load_model",
        "keras.saving.load_model",
        "keras.utils.get_file",
        "keras.callbacks.CSVLogger",
        "keras.src.layers.core.dense.Dense",
        "keras.Variable",
        "everstep.fit",
        "everstep.run_experiment",
        "everstep.Controller",
        "everstep.storage.write_text",
        "everstep.storage.os.system",
        "everstep.Config.save_yaml",
        "everstep.Config.from_yaml",
    ],
)
def test_other_parts_of_keras_and_of_everstep(name):
    assert "refused" in refused(name) or "does not exist" in refused(name)


def test_an_alias_is_checked_as_the_object_it_names(project):
    (project / "src/my_project/aliases.py").write_text(
        "import keras, everstep.storage\n"
        "Alias = keras.layers.Dense\nload = keras.saving.load_model\nAnything = keras.layers.Lambda\n"
        "write = everstep.storage.write_text\nlayers = keras.layers\nutils = keras.utils\n"
    )
    import keras

    assert resolve("my_project.aliases.Alias") is resolve("my_project.aliases.layers.Dense") is keras.layers.Dense
    for name in ("load", "Anything", "write", "layers.Lambda", "utils.get_file"):
        assert "refused" in refused(f"my_project.aliases.{name}")


def test_a_listed_part_of_keras_is_open(project):
    (project / "pyproject.toml").write_text('[tool.everstep]\nallow = ["keras.layers", "keras.src.layers"]\n')
    assert resolve("keras.layers.Lambda").__name__ == "Lambda"
    assert "refused" in refused("keras.saving.load_model")
