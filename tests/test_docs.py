"""The documentation is true: its code runs, its commands parse, its links lead somewhere, its map fits the code."""

import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import typer
import yaml

from everstep.cli.commands import COMMANDS, app, load
from everstep.cli.main import main
from everstep.config import apply, get_exp_config, load_entry_points
from everstep.model_garden.absl_flags import normalised
from everstep.model_garden.gin.reading import statements
from everstep.projects.components.config import DESCRIPTIONS, ProjectConfig
from everstep.projects.flow.settings import compose
from everstep.sweeps.space import create_space
from everstep.sweeps.target import check_space, experiment_check
from test_structure import LEVEL, edges, modules, part

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "everstep"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    SOURCE / "recipes" / "data" / "README.md",
    ROOT / "examples" / "mnist_components" / "README.md",
]

FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNIVERSAL = {"doors", "entry_points", "errors", "extras", "keras_internals", "log_lines", "redaction"}
UNIVERSAL |= {"notebook", "private_names", "startup_messages", "types"}


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


RUN = {"python", "sh run"}
SHOWN_ON = dict.fromkeys(
    [f"docs/how-to/{name}.md" for name in ("actions", "export", "training-jobs")], ["jax", "tensorflow"]
)
"""Pages whose outputs are not those of every backend: a SavedModel, or the backend's name."""

COMPILED = {"README.md", "docs/get-started/experiment.md"}
"""Pages with hundreds of steps: every day on TensorFlow, whose compiled loop needs a fraction of the time."""


LONG = {f"docs/how-to/{name}.md" for name in ("actions", "components", "export", "fine-tuning", "image-data")}
LONG |= {"docs/how-to/training-jobs.md", "docs/coming-from/fit.md"}
"""Pages that train, export or evaluate several times: `make test-full` runs them. Daily tests train the same ways."""


def _with_code() -> Iterator[Any]:
    for page in PAGES:
        if RUN & {block.kind for block in blocks(page)}:
            name = name_of(page)
            daily = pytest.mark.daily("tensorflow" if name in COMPILED else SHOWN_ON.get(name, ["torch"])[0])
            yield pytest.param(page, marks=pytest.mark.full if name in LONG else daily, id=name)


@pytest.mark.backend
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, saving a model
@pytest.mark.parametrize("page", list(_with_code()))
def test_code_runs(page, tmp_path, monkeypatch):
    """A page is one program, in a directory of its own; `text output` after a block is what it prints.

    In `text like` a number with a point stands for any such number, and `…` for anything: what a clock has made.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend not in SHOWN_ON.get(name_of(page), [backend]):
        pytest.skip(f"the page shows what is printed on {SHOWN_ON[name_of(page)]}")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_').lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with mock.patch.dict("os.environ"):  # what a page sets is gone with it
        _run_page(page, module)


@pytest.mark.backend
@pytest.mark.daily("torch")
@pytest.mark.parametrize("name", ["README.md", "docs/get-started/fit.md"])
def test_a_program_is_killed_in_its_middle_and_resumes(name, tmp_path):
    """As a reader does it: the first program of the page is saved as `train.py`, and the commands are typed."""
    found = blocks(ROOT / name)
    program = next(block.text for block in found if block.kind == "python")
    commands = next(block.text for block in found if block.kind == "sh" and "kill -9" in block.text)
    (tmp_path / "train.py").write_text(program)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    typed = subprocess.run(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr
    directory = re.search(r'model_dir="(.*)"', program)[1]
    record = json.loads((tmp_path / directory / "run.json").read_text())
    killed, resumed = record["attempts"]
    assert (killed["reason"], resumed["reason"], record["status"]) == ("killed", "done", "finished")
    assert 0 < resumed["from_step"] < record["step"]
    assert re.search(rf"resumed at step {resumed['from_step']}, attempt 2 \(\d+ epochs? done\)\n", typed.stderr)


def _run_page(page: Path, module: types.ModuleType) -> None:
    printed: str | None = ""
    for block in blocks(page):
        if block.kind == "python":
            printed = _run(block, page, module)
        elif block.kind == "sh run":
            printed = _type(block)
        elif block.kind == "python torch":  # run by tests/export/test_torch_program.py
            printed = None
        elif block.kind == "text output" and printed is not None:
            assert block.text == printed
        elif block.kind == "text like":
            assert _like(block.text, printed), f"{name_of(page)}:{block.line}: it prints\n{printed}"


def _like(shown: str, printed: str) -> bool:
    parts = re.split(r"( *\d+\.\d+(?:e[-+]\d+)?|…)", shown)  # text, number, text, …, text
    numbers = {True: ".*?", False: r" *(?:\d+\.\d+|\d+)(?:e[-+]\d+)?"}
    pattern = [numbers[part == "…"] if place % 2 else re.escape(part) for place, part in enumerate(parts)]
    return re.fullmatch("".join(pattern), printed, re.DOTALL) is not None


def test_numbers_are_compared_as_numbers():
    assert _like("loss: 0.5 | 3 steps\n…\n", "loss: 1.25e-05 | 3 steps\nmore\nlines\n")
    assert not _like("loss: 0.5 | 3 steps\n", "loss: 0.5 | 4 steps\n")
    assert not _like("loss: 0.5\n", "loss: nan\n")


def _run(block: Block, page: Path, module: types.ModuleType) -> str:
    source = "\n" * block.line + block.text  # so that a traceback shows the line of the page
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, str(page), "exec"), vars(module))
    return out.getvalue()


def _lines(block: Block) -> list[str]:
    """Returns the commands of a block; one that ends with a backslash goes on in the next line."""
    return block.text.replace("\\\n", " ").splitlines()


def _type(block: Block) -> str:
    """Runs the commands of a block in this process; each ends with 0, or as the comment behind it says."""
    import keras

    keras.utils.clear_session(free_memory=False)  # layers are numbered as in a process of its own
    out = io.StringIO()
    for line in _lines(block):
        said = re.search(r"# exit code (\d+)$", line)
        program, *words = shlex.split(line, comments=True)
        assert program == "everstep", f"only everstep's commands can be run here: {line}"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(words)
        assert code == (int(said[1]) if said else 0), out.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page):
    kinds = {block.kind for block in blocks(page)}
    known = {
        "python",
        "python notest",
        "python torch",
        "sh",
        "sh run",
        "yaml",
        "toml",
        "gin",
        "text output",
        "text like",
        "",
    }
    assert kinds <= known | set(PROJECT_FILES)
    for block in blocks(page):
        if block.kind.startswith("python"):
            ast.parse(block.text)


CODE = re.compile(
    r"^(?:\$ |>>> |import |from \w+ import|def |class |@\w|(?:everstep|python|pip|make|cd) [\w./-])", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_hides_from_the_tests(page):
    """Every fence begins a line and ends; one without a kind holds what is printed or drawn, and no code."""
    text = page.read_text("utf-8")
    assert not re.search(r"^\s*(?:```|~~~)", FENCE.sub("", text), re.MULTILINE), "an indented or unfinished fence"
    hidden = [block for block in blocks(page) if block.kind == "" and CODE.search(block.text)]
    assert not hidden, f"say what it is: {hidden}"


PROJECT_FILES = {
    "yaml config/parameters.yaml": lambda settings: settings.params.epoch == 5,
    "yaml config/optimizer.yaml": lambda settings: settings.has_optimizer_file,
    "yaml config/catalog.yaml": lambda settings: len(settings.catalog_layers) == 1,
    "yaml config/local/catalog.yaml": lambda settings: len(settings.catalog_layers) == 1,
    "yaml runs/baseline/config.yaml": None,
    "yaml space.yaml": None,
}
FLOW = [(name_of(page), b) for page in PAGES for b in blocks(page) if b.kind.startswith("yaml config/")]
CARDS = [(name_of(page), b) for page in PAGES for b in blocks(page) if b.kind == "yaml runs/baseline/config.yaml"]
GIN = [(name_of(page), b) for page in PAGES for b in blocks(page) if b.kind == "gin"]


@pytest.mark.parametrize(("page", "block"), FLOW)
def test_files_of_a_flow_are_read(page, block, tmp_path):
    file = tmp_path / block.kind.split()[1]
    file.parent.mkdir(parents=True)
    file.write_text(block.text)
    settings = compose(tmp_path / "config", ["Mnist_B", "Mnist_A"], ["Mnist_A", "Mnist_B"])
    assert PROJECT_FILES[block.kind](settings)


@pytest.mark.parametrize(("page", "block"), CARDS)
def test_descriptions_are_those_of_a_card(page, block):
    said = yaml.safe_load(block.text)
    assert set(said) == set(DESCRIPTIONS)
    known = ProjectConfig().as_dict()
    assert not [key for section in said for key in said[section] if key not in known[section]]


@pytest.mark.parametrize("block", [b for page in PAGES for b in blocks(page) if b.kind == "yaml space.yaml"])
def test_spaces_fit_their_experiment(block, tmp_path):
    (tmp_path / "space.yaml").write_text(block.text)
    space = create_space(tmp_path / "space.yaml")
    check_space(space, experiment_check(space, (), experiment="regression/sine"))


@pytest.mark.parametrize(("page", "block"), GIN)
def test_gin_is_gin(page, block):
    assert len(list(statements(block.text, page))) == len(block.text.splitlines())


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
        lines = [line for block in blocks(page) if block.kind.startswith("sh") for line in _lines(block)]
        inline = re.findall(r"`(everstep [^`]+)`", FENCE.sub("", page.read_text("utf-8")))
        for line in [*lines, *inline]:
            words = shlex.split(line, comments=True)
            if words and words[0].rpartition("/")[2] == "everstep":
                yield name_of(page), words[1:]


def test_commands_parse():
    """Each is a command that exists, with options and arguments that it takes."""
    root = typer.main.get_command(app)
    for page, words in commands():
        if words[0] in ("--help", "--version", "--install-completion", "--show-completion"):
            continue
        assert words[0] in COMMANDS, f"{page}: there is no everstep {words[0]}"
        words = normalised(words)
        if words[1:2] == ["--help"]:
            words.pop()
        with root.make_context("everstep", words, resilient_parsing=True) as context:
            try:
                load(words[0]).make_context(words[0], list(words[1:]), parent=context).close()
            except Exception as error:
                pytest.fail(f"{page}: everstep {shlex.join(words)}: {error}")


def test_overrides_fit():
    """Values that a command sets exist in the experiment that it names."""
    load_entry_points()
    for _, (command, *words) in commands():
        names = [m[1] for word in words if (m := re.fullmatch(r"(?:--experiment=)?(mnist/\w+)", word))]
        pairs = [m[1] for word in words if (m := re.fullmatch(r"(?:--params_override=)?(\w+\..*=.*)", word))]
        if names and command in ("train", "eval", "config"):
            apply(get_exp_config(names[0]), overrides=pairs).validate()


def test_every_command_has_its_page():
    named = {words[0] for page, words in commands() if page == "docs/reference/commands.md"}
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


def test_every_page_can_be_come_to_from_the_readme():
    """By links from page to page; the reference has its own way in, by the navigation of the site."""
    found, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        found.add(page)
        targets = re.findall(r"\]\(([^)\s#:]+\.md)[)#]", page.read_text("utf-8"))
        left += {(page.parent / target).resolve() for target in targets} - found
    assert not [name_of(page) for page in PAGES if page not in found]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_files_that_are_named_exist(page):
    """Tests, by their functions where these are named; examples; programs that measure."""
    text = page.read_text("utf-8")
    for path, name in re.findall(r"`((?:tests|examples)/[^`:]+)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name
    for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
        if module != "benchmarks.reliability.NAME":
            assert (ROOT / (module.replace(".", "/") + ".py")).exists() or module == "benchmarks", module


def test_guarantees_are_measured_by_programs_that_exist():
    exact = (
        (ROOT / "docs" / "explanation" / "guarantees.md")
        .read_text("utf-8")
        .partition("## Exact")[2]
        .partition("\n## ")[0]
    )
    named = [name for line in exact.splitlines() for name in re.findall(r"`(\w+)`", line.rpartition(" | ")[2])]
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / "benchmarks" / "reliability" / f"{name}.py").exists()]


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


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


def test_places_to_change_exist():
    """Every file and folder in the table exists, and defines the name behind it."""
    places = rows("Where would I change …?")
    assert len(places) > 15
    for _, place, also in places:
        for path in re.findall(r"`([\w./]+(?:\.py|\.md|/))`", f"{place} {also}"):
            assert (SOURCE / path).exists() or (ROOT / path).exists(), path
        for file, name in re.findall(r"`([\w/]+\.py)`, `([\w.]+)`", place):
            constants = re.findall(r"^(\w+)(?:: .*)? = ", (SOURCE / file).read_text("utf-8"), re.MULTILINE)
            assert name in definitions(SOURCE / file) | set(constants), f"{file} has no {name}"


def test_parts_are_as_drawn():
    drawn = {_part(name): set(map(_part, imports.split())) for name, _, imports in rows("Parts")}
    assert list(drawn) == sorted(drawn, key=lambda p: LEVEL[p]), "the table is in the order of LINES"
    assert set(drawn) == {part(module) for module in modules() if module != "everstep"}
    for importer, name in edges():
        own, other = part(importer), part(name)
        if own != other and other not in UNIVERSAL and drawn[own] != {"any"}:
            assert other in drawn[own], f"docs/architecture.md, Parts: {own} imports {other} ({importer}: {name})"


def _part(cell: str) -> str:
    return cell.strip("`").removesuffix("/").removesuffix(".py").replace("/", ".")


def test_dependencies_are_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text("utf-8")
    wanted = [*project["dependencies"], *(line for name in extras if name != "all" for line in extras[name])]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted} | set(extras)
    assert not [name for name in sorted(names) if f"`{name}`" not in page]
    explained = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert explained <= names, "explained, but no dependency"
