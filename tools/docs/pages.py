"""A MkDocs hook: adds pages that are not in docs/, and adapts the Markdown of all pages to MkDocs.

The pages can also be read on a code host: their links lead to files of the repository, and some of their fences have
a suffix for the tests. The programs of examples/ and the project's own files become pages here.
"""

import ast
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook as a file, outside of any package
import reference

ROOT = Path(__file__).parents[2]
OWN = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PROGRAMS = ("examples/*.py", "examples/gin_blocks/*.py", "examples/training_component/component.py")

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")
OUTPUT = re.compile(r"^```text (?:output|like)$", re.MULTILINE)
TESTED = re.compile(r"^```(python|sh|yaml) [\w/.]+$", re.MULTILINE)
DIAGRAM = re.compile(r"^!\[[^\]]*\]\([./]*(images/concepts/\w+\.svg)\)$", re.MULTILINE)
ESCAPED = re.compile(r"`[^`\n]*\\\|[^`\n]*`")


def on_config(config: Any) -> Any:
    """Shows the menu of versions, where `tools/docs/versions.py` builds one of several."""
    if os.environ.get("EVERSTEP_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds pages for the programs and READMEs of examples/, and for the files of `OWN`."""
    texts = {name: _read(name) for name in [*OWN, *_found("examples/*/README.md")]}
    texts |= {name: _program(name) for pattern in PROGRAMS for name in _found(pattern)}
    for name, text in texts.items():
        files.append(File.generated(config, _in_site(name), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Adapts a page to MkDocs: its links, and the suffixes of its fences. The first page has the whole width."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    source = _in_repository(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        return f"]({posixpath.relpath(_in_site(target), here or '.')}"

    markdown = reference.filled(markdown)
    markdown = DIAGRAM.sub(lambda found: f"<figure>{_read('docs/' + found[1])}</figure>", markdown)
    markdown = OUTPUT.sub('```text title="Output"', TESTED.sub(r"```\1", markdown))
    markdown = ESCAPED.sub(lambda found: found[0].replace("\\|", "|"), markdown)
    return LINK.sub(link, markdown)


def _in_site(name: str) -> str:
    """Returns where a file of the repository is in the site."""
    if name in OWN:
        return OWN[name]
    if name.startswith("examples/") and name.endswith(".py"):
        return name.removesuffix(".py") + ".md"
    if name.startswith("examples/") and name.endswith("/README.md"):  # else it becomes the page of its section
        return name.removesuffix("README.md") + "about.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else name


def _in_repository(uri: str) -> str:
    """Returns where a page of the site is in the repository; its links are relative to that."""
    own = {page: name for name, page in OWN.items()}
    own |= {_in_site(name): name for name in _found("examples/*/README.md")}
    return own.get(uri) or (uri if uri.startswith("examples/") else f"docs/{uri}")


def _found(pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def _read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _program(name: str) -> str:
    """A program as a page: its docstring, and its source."""
    text = _read(name)
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return f"# {name}\n\n{docstring}\n\n```python\n{text.rstrip()}\n```\n"
