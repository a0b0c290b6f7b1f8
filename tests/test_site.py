"""The documentation as a site: it builds strictly and without network, loads nothing from elsewhere, lacks no page."""

import functools
import html.parser
import json
import os
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.docs import versions

import everstep
from everstep.doors import listed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
AREAS = ["actions", "bct", "catalog", "components", "config", "data"]
AREAS += ["evaluation", "export", "flow", "multitask", "optim", "training"]

# Reads the pages and the package's text, and nothing else: whatever asks for another host ends the build.
# Not --quiet: MkDocs would count no warning then, and be strict about nothing.
BUILD = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"the build asks for the network: {event} {arguments}")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli

cli(["build", "--strict", "--site-dir", sys.argv[1]], standalone_mode=False)
print(sorted({"tensorflow", "torch", "keras"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", BUILD, folder],
            cwd=ROOT,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "[]", (
            "the reference needs no Keras: signatures are read from the text, keys from the configuration classes"
        )
        yield Path(folder)


class Elements(html.parser.HTMLParser):
    """The start tags of a page, each with its attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def each(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


@functools.cache
def elements(page: Path) -> Elements:
    return Elements(page)


def sources() -> list[str]:
    """Every page of docs/, by its place in the site's navigation."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def navigated(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for inner in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from navigated(inner)


def test_every_page_is_in_the_navigation():
    listed = list(navigated(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert not [page for page in sources() if page not in listed], "give it a line in mkdocs.yml"
    assert len(listed) == len(set(listed))


@pytest.mark.full
def test_every_page_can_be_come_to(site):
    """By links of the navigation, from the first page on; the search knows all of them, too."""
    links = {a["href"] for a in elements(site / "index.html").each("a") if "md-nav__link" in a.get("class", "")}
    built = {page.removesuffix(".md") + ".html" for page in sources()}
    assert not built - {posixpath.normpath(link.partition("#")[0]) for link in links}
    searched = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    assert not built - {entry["location"].partition("#")[0] or "index.html" for entry in searched}


@pytest.mark.full
def test_nothing_is_loaded_from_another_host(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) >= len(sources())
    for page in pages:
        tags = ("script", "img", "iframe", "source", "video")
        loaded = [one.get("src", "") for tag in tags for one in elements(page).each(tag)]
        loaded += [one["href"] for one in elements(page).each("link")]
        assert not [url for url in loaded if re.match(r"(?:\w+:)?//", url)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text("utf-8")), style.name


@pytest.mark.full
def test_pictures_are_there_and_described(site):
    for page in site.rglob("*.html"):
        for image in elements(page).each("img"):
            assert image.get("alt"), f"{page.name}: {image['src']} says nothing to those who cannot see it"
            assert (page.parent / image["src"]).is_file()


@pytest.mark.full
def test_the_search_works_from_the_disk(site):
    """Its index is a script, and so is what stands in for a worker, which browsers refuse to pages of the disk."""
    assert (site / "search" / "search_index.js").is_file()
    assert any("iframe-worker" in one.get("src", "") for one in elements(site / "index.html").each("script"))


def test_versions_are_listed_newest_first(tmp_path):
    for name in ("0.1", "0.10", "0.9", "images"):
        (tmp_path / name).mkdir()
    assert versions.list_versions(tmp_path) == ["0.10", "0.9", "0.1"]
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [entry["aliases"] for entry in listed] == [["latest"], [], []]
    assert "0.10/index.html" in (tmp_path / "index.html").read_text("utf-8")


# -- the reference ---------------------------------------------------------------------------------------------------


def headings(page: Path) -> set[str]:
    return {attributes["id"] for _, attributes in elements(page).found if "doc-heading" in attributes.get("class", "")}


def public(area: str) -> list[str]:
    """The names that a package hands on, read and not imported."""
    package = ROOT / "src" / "everstep"
    file = package / f"{area}.py"
    return list(listed((file if file.is_file() else package / area / "__init__.py").read_text("utf-8")))


@pytest.mark.full
def test_the_reference_has_every_public_name(site):
    ids = set().union(*(headings(page) for page in (site / "reference" / "api").glob("*.html")))
    assert not [name for name in everstep.__all__ if f"everstep.{name}" not in ids]
    for area in AREAS:
        assert not {f"everstep.{area}.{name}" for name in public(area) if f"everstep.{name}" not in ids} - ids


@pytest.mark.full
def test_every_name_asked_for_is_explained(site):
    for source in (DOCS / "reference" / "api").glob("*.md"):
        page = site / "reference" / "api" / f"{source.stem}.html"
        text = page.read_text("utf-8")
        for name in re.findall(r"^::: (\S+)$", source.read_text("utf-8"), re.MULTILINE):
            _, _, after = text.partition(f'id="{name}"')
            own = after.partition('<div class="doc doc-contents')[2].partition('class="doc doc-object')[0]
            assert "<p>" in own, f"{name} says nothing"


@pytest.mark.full
def test_examples_of_docstrings_are_code(site):
    texts = [page.read_text("utf-8") for page in (site / "reference" / "api").glob("*.html")]
    examples = [after[:60] for text in texts for after in text.split("<p>Example:")[1:]]
    assert len(examples) >= 5
    assert all(re.match(r'</p>\s*<div class="[^"]*highlight', after) for after in examples)
