"""The documentation is true: its code runs, its commands parse, its links lead somewhere, its map fits the code."""

import ast
import contextlib
import io
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import typer

from everstep.cli.commands import COMMANDS, app, load
from everstep.cli.spelling import normalised
from everstep.config import apply, get_exp_config, load_entry_points
from test_structure import LEVEL, edges, modules, part

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "everstep"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    SOURCE / "zoo" / "data" / "README.md",
    ROOT / "examples" / "mnist_components" / "README.md",
]

FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNIVERSAL = {"errors", "redaction", "types"}


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(m[1].strip(), m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, saving a model
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.kind == "python" for b in blocks(p))], ids=name_of)
def test_code_runs(page, tmp_path, monkeypatch):
    """A page is one program, in a directory of its own; `text output` after a block is what it prints."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_').lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with mock.patch.dict("os.environ"):  # what a page sets is gone with it
        _run_page(page, module)


def _run_page(page: Path, module: types.ModuleType) -> None:
    printed: str | None = ""
    for block in blocks(page):
        if block.kind == "python":
            printed = _run(block, page, module)
        elif block.kind == "python torch":  # run by tests/export/test_torch_program.py
            printed = None
        elif block.kind == "text output" and printed is not None:
            assert block.text == printed


def _run(block: Block, page: Path, module: types.ModuleType) -> str:
    source = "\n" * block.line + block.text  # so that a traceback shows the line of the page
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, str(page), "exec"), vars(module))
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page):
    kinds = {block.kind for block in blocks(page)}
    assert kinds <= {"python", "python notest", "python torch", "sh", "yaml", "toml", "text output", ""}
    for block in blocks(page):
        if block.kind.startswith("python"):
            ast.parse(block.text)


YAML = [(name_of(page), block) for page in PAGES for block in blocks(page) if block.kind == "yaml"]
TOML = [(name_of(page), block) for page in PAGES for block in blocks(page) if block.kind == "toml"]


@pytest.mark.parametrize(("page", "block"), YAML)
def test_values_are_those_of_an_experiment(page, block, tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "somebody")
    (tmp_path / "values.yaml").write_text(block.text)
    assert apply(get_exp_config("mnist/mlp"), [tmp_path / "values.yaml"]) != get_exp_config("mnist/mlp")


@pytest.mark.parametrize(("page", "block"), TOML)
def test_toml_is_toml(page, block):
    assert tomllib.loads(block.text)


def test_few_blocks_do_not_run():
    every = [block.kind for page in PAGES for block in blocks(page)]
    assert every.count("python notest") <= 1


# -- commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields every everstep command line in the documentation, with its page."""
    for page in LINKED:
        lines = [line for block in blocks(page) if block.kind == "sh" for line in block.text.splitlines()]
        inline = re.findall(r"`(everstep [^`]+)`", FENCE.sub("", page.read_text("utf-8")))
        for line in [*lines, *inline]:
            words = shlex.split(line, comments=True)
            if words and words[0].rpartition("/")[2] == "everstep":
                yield name_of(page), words[1:]


def test_commands_parse():
    """Each is a command that exists, with options and arguments that it takes."""
    root = typer.main.get_command(app)
    for page, words in commands():
        if words[0] in ("--help", "--version"):
            continue
        assert words[0] in COMMANDS, f"{page}: there is no everstep {words[0]}"
        words = normalised(words)
        if words[1:2] == ["--help"]:
            words.pop()
        with root.make_context("everstep", words, resilient_parsing=True) as context:
            load(words[0]).make_context(words[0], list(words[1:]), parent=context).close()


def test_overrides_fit():
    """Values that a command sets exist in the experiment that it names."""
    load_entry_points()
    for _, (command, *words) in commands():
        names = [m[1] for word in words if (m := re.fullmatch(r"(?:--experiment=)?(mnist/\w+)", word))]
        pairs = [m[1] for word in words if (m := re.fullmatch(r"(?:--params_override=)?(\w+\..*=.*)", word))]
        if names and command in ("train", "eval", "config"):
            apply(get_exp_config(names[0]), overrides=pairs).validate()


def test_every_command_has_its_page():
    named = {words[0] for page, words in commands() if page == "docs/commands.md"}
    assert set(COMMANDS) <= named


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    texts = "\n".join(page.read_text("utf-8") for page in LINKED)
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([a-z-]+)", texts, re.MULTILINE)) <= targets


# -- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} does not exist"
        assert not anchor or anchor in _anchors(linked), f"{target}: no such heading"


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    assert not [name_of(page) for page in PAGES[1:] if f"({name_of(page)})" not in text]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


# -- the map ---------------------------------------------------------------------------------------------------------


def section(heading: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def definitions(path: Path) -> set[str]:
    """Functions, classes, methods and attributes that a file defines, as `Class.name` or `name`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = list(ast.walk(node))
            names = [n.name for n in inner if isinstance(n, ast.FunctionDef)]
            names += [n.attr for n in inner if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
            found |= {node.name, *(f"{node.name}.{name}" for name in names)}
    return found


def test_path_of_a_batch_exists():
    path = rows("The path of a batch")
    assert len(path) > 10
    for _, file, function, _ in path:
        assert function.strip("`") in definitions(SOURCE / file.strip("`")), f"{file} has no {function}"


def test_orders_that_matter_exist():
    named = re.findall(r"`(\w+(?:/\w+)?\.py)`,\s`([\w.]+)`", section("Orders that matter"))
    assert len(named) >= len(re.findall(r"^- ", section("Orders that matter"), re.MULTILINE))
    for file, function in named:
        assert function in definitions(SOURCE / file), f"{file} has no {function}"


def test_parts_are_as_drawn():
    drawn = {_part(name): set(map(_part, imports.split())) for name, _, imports in rows("Parts")}
    assert list(drawn) == sorted(drawn, key=lambda p: LEVEL[p]), "the table is in the order of LINES"
    assert set(drawn) == {part(module) for module in modules() if module != "everstep"}
    for importer, name in edges():
        own, other = part(importer), part(name)
        if own != other and other not in UNIVERSAL and drawn[own] != {"any"}:
            assert other in drawn[own], f"docs/architecture.md, Parts: {own} imports {other} ({importer}: {name})"


def _part(cell: str) -> str:
    return cell.strip("`").removesuffix("/").removesuffix(".py")


def test_dependencies_are_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    wanted = [*project["dependencies"], *(line for name in extras if name != "all" for line in extras[name])]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted} | set(extras)
    assert not [name for name in sorted(names) if f"`{name}`" not in page]
    explained = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert explained <= names, "explained, but no dependency"
