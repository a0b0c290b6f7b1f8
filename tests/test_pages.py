"""The pages are built for readers: a promise first, a way on at the end, quoted messages and keys that exist."""

import ast
import functools
import re

import pytest
from tools.docs import gallery, reference

from everstep.cli.commands import COMMANDS
from everstep.config.registry import experiments, load_entry_points
from everstep.config.schema import field_docs
from everstep.experiment_config import ExperimentConfig
from everstep.projects.components.config import ProjectConfig
from test_docs import FENCE, PAGES, ROOT, SOURCE, blocks, name_of

DOCS = ROOT / "docs"
WRITTEN = [page for page in PAGES if page != ROOT / "README.md" and "api" not in page.parts]


# -- the shape of a page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_a_page_says_first_what_it_gives(page):
    """One title; below it a paragraph, before any code, table or picture."""
    text = page.read_text("utf-8")
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", FENCE.sub("", text), re.MULTILINE)) == 1
    first = text.split("\n\n")[1]
    assert re.match(r"[A-Z`\"*\[]", first), f"begins with {first[:40]!r}"
    assert len(first) >= 60, f"says too little: {first!r}"


@pytest.mark.parametrize("page", [page for page in WRITTEN if page != DOCS / "index.md"], ids=name_of)
def test_a_page_ends_with_where_to_go(page):
    last = FENCE.sub("", page.read_text("utf-8")).rpartition("\n## ")[2]
    assert last.startswith("Next\n"), "its last section is not 'Next'"
    assert "](" in last


COLUMN, PRINTED = 88, 100
"""Characters that fit the site's column in a window of 1,280 pixels, in a browser; what is printed is smaller there."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_wider_than_its_column(page):
    for block in blocks(page):
        width = PRINTED if block.kind in ("", "text output", "text like") else COLUMN
        wide = [line for line in block.text.splitlines() if len(line) > width]
        assert not wide, f"{name_of(page)}:{block.line}: more than {width} characters"


CONTINUED = {"docs/how-to/report.md": "docs/how-to/components.md"}
"""Pages that continue the run of another one, which they name."""


def test_every_page_has_its_own_run_directories():
    """Whoever follows one page after the other in one folder meets no run of another model."""
    pages = {}
    for page in PAGES:
        for directory in re.findall(r"\bruns/([\w-]+)", page.read_text("utf-8")):
            if not re.search(r"-[0-9a-f]{10}$", directory):  # that one Everstep has named
                pages.setdefault(directory, set()).add(CONTINUED.get(name_of(page), name_of(page)))
    assert not {directory: names for directory, names in pages.items() if len(names) > 1}
    for page, before in CONTINUED.items():
        assert f"({before.rpartition('/')[2]})" in (ROOT / page).read_text("utf-8"), "it does not name the other page"


def test_the_gallery_shows_experiments_that_exist():
    load_entry_points()
    text = (DOCS / "gallery.md").read_text("utf-8")
    named = re.findall(r"`(?:everstep train )?(\w+/\w+)`", text)
    assert len(named) > 8
    assert not [name for name in named if name not in experiments() and name != "src/everstep"]
    assert {name.replace("/", "-") for name in gallery.EXPERIMENTS} == set(re.findall(r"gallery/([\w-]+)\.svg", text))


def test_the_readme_fits_on_few_screens():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    assert "(docs/architecture.md)" in text


# -- what is quoted exists -------------------------------------------------------------------------------------------


@functools.cache
def texts_of_the_code() -> str:
    """Every text in the package, parts of f-strings included, one per line."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-.\d]*[a-z]", "\0", node.value))
    return "\n".join(found)


MESSAGES = re.findall(r"^\| `([^`]+)`", (DOCS / "how-to" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)


def is_raised(message: str) -> bool:
    return all(part.strip(" ,;:()") in texts_of_the_code() for part in message.split("…"))


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_that_are_quoted_are_those_of_the_code(message):
    assert is_raised(message), "reworded? The page has to say what users see"


def test_a_reworded_message_would_be_found():
    assert len(MESSAGES) > 30
    assert not is_raised("the labels are two numbers for each sample")


def test_environment_variables_are_listed():
    """Every variable of everstep's own that the package reads."""
    named = set(re.findall(r"\bEVERSTEP_[A-Z_]+[A-Z]\b", texts_of_the_code()))
    page = (DOCS / "reference" / "environment.md").read_text("utf-8")
    assert len(named) > 8
    assert not sorted(name for name in named if f"`{name}`" not in page)


# -- the reference ---------------------------------------------------------------------------------------------------


def keys_of(config, prefix: str = "") -> set[str]:
    """Returns the path of every key that a configuration has, by its own words: those of `as_dict`."""
    found = set()
    for name in config.as_dict():
        path = f"{prefix}.{name}" if prefix else name
        found.add(path)
        if isinstance(getattr(config, name), reference.Config):
            found |= keys_of(getattr(config, name), path)
    return found


def listed_keys() -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)`", reference.configuration(), re.MULTILINE))


def test_every_key_is_in_the_reference():
    listed = {key.replace("task.validation_data", "task.train_data") for key in listed_keys()}
    wanted = keys_of(ExperimentConfig()) | keys_of(ProjectConfig())
    for name in reference.shipped_experiments():
        wanted |= keys_of(reference.get_exp_config(name).task, "task")
    missing = {key.replace("task.validation_data", "task.train_data") for key in wanted} - listed
    assert not {key for key in missing if key not in ("task", "trainer", "runtime")}


def test_every_key_has_a_type_and_a_meaning():
    rows = [row for _, part in reference.experiment_sections() for row in part]
    assert len(rows) > 150
    assert not [row.path for row in rows if not row.type or not row.meaning or not row.default]
    assert field_docs(ProjectConfig).keys() >= ProjectConfig().as_dict().keys()


def test_every_command_and_option_is_in_the_reference():
    text = reference.commands()
    assert not [name for name in COMMANDS if f"### everstep {name}" not in text]
    assert "`--allow-change KEY`" in text
    assert "`--max-restarts N`" in text


def test_generated_pages_ask_for_tables_that_exist():
    marks = {found for page in PAGES for found in reference.MARK.findall(page.read_text("utf-8"))}
    assert marks == set(reference.GENERATED)


def test_files_of_a_run_are_listed():
    """The page names what the run on the page itself has written, as it prints it."""
    page = (DOCS / "reference" / "run-directory.md").read_text("utf-8")
    table = page.partition("## ")[0]
    printed = re.search(r"```text output\n(.*?)\n```", page, re.DOTALL)[1].split()
    assert "checkpoints" in printed
    assert not [name for name in printed if f"`{name}" not in table and name not in page.partition("Hidden files")[2]]


# -- statements that were wrong once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_forgets_a_backend(page):
    """A choice of backends names all three, and so does what a value may be."""
    text = page.read_text("utf-8")
    assert "`tensorflow` or `jax`" not in text
    assert not re.search(r"`tensorflow`, `jax`(?!,? (?:or|and) `torch`)", text)
    for choice in re.findall(r"--backend (\w+)", text):
        assert choice in ("tensorflow", "jax", "torch", "NAME")


def test_no_help_text_forgets_a_backend():
    """`runtime.backend`, and the option of every command."""
    rows = [line for line in reference.commands().splitlines() if line.startswith("| `--backend")]
    rows += [
        row.meaning for _, part in reference.experiment_sections() for row in part if row.path == "runtime.backend"
    ]
    assert len(rows) > 5
    assert {sum(name in row for name in ("tensorflow", "jax", "torch")) for row in rows} <= {0, 3}


def test_what_the_code_can_is_not_denied():
    """Sentences that once were on a page, and were false."""
    denied = {"images are not logged": "everstep/tracking/samples.py", "lacks multi-machine": "everstep/gang"}
    texts = " ".join(page.read_text("utf-8").lower() for page in PAGES)
    assert not [sentence for sentence, file in denied.items() if (ROOT / "src" / file).exists() and sentence in texts]


def test_claims_of_being_alone_name_levanter():
    page = (DOCS / "explanation" / "compared.md").read_text("utf-8")
    assert "Levanter" in page
    assert "none of the others" not in page.lower()
