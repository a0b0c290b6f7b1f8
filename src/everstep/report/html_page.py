"""The report as one HTML file: style and script are inlined from `page/`, and the data are JSON.

Two things keep the data (ids, texts, names of classes) from being run as code. In the JSON every `<` is written as
`\\u003c`, so that no text can end its element. And the page's content security policy allows only this script and this
style, by their digests, and inline images: nothing from a network.
"""

import base64
import hashlib
import html as markup
import importlib.resources
import json
import os
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.report.config_differences import differences, incomparable
from everstep.report.run_data import RunData, read_runs
from everstep.report.sample_comparison import compare

SCRIPTS = (
    "dom.js",
    "format.js",
    "state.js",
    "filters.js",
    "charts.js",
    "lines.js",
    "histogram.js",
    "scatter.js",
    "pictures.js",
    "details.js",
    "headline.js",
    "curves.js",
    "comparison.js",
    "confusion.js",
    "classes.js",
    "regression.js",
    "distributions.js",
    "gallery.js",
    "slices.js",
    "table.js",
    "configuration.js",
    "main.js",
)
"""In the order of their dependencies."""


def html(
    title: str,
    data: Any,
    scripts: Sequence[str] = SCRIPTS,
    styles: Sequence[str] = ("page.css",),
    connects: bool = False,
) -> str:
    """Returns the page.

    Args:
      title: The title, as plain text.
      data: The page's data, which must be valid JSON without NaN.
      scripts: The files of the script, in the order of their dependencies.
      styles: The files of the style.
      connects: Whether the script may ask the server that the page is from.
    """
    style = "".join(map(page_file, styles))
    script = '(() => {\n"use strict";\n' + "\n".join(map(page_file, scripts)) + "\n})();\n"
    return string.Template(page_file("page.html")).substitute(
        title=markup.escape(title),
        policy=policy(style, script, connects),
        style=style,
        data=as_json(data),
        script=script,
    )


def as_json(data: Any) -> str:
    """Returns JSON for a `<script>` element: no text in it can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def policy(style: str, script: str = "", connects: bool = False) -> str:
    """Returns a page's content security policy: this style and script, inline pictures, no network but its own server.

    Args:
      style: The text of the style.
      script: The text of the script; "" for none.
      connects: Whether the script may ask the server that the page is from.
    """
    scripts = f"; script-src '{_digest(script)}'" if script else ""
    server = "; connect-src 'self'" if connects else ""
    allowed = f"style-src '{_digest(style)}'{scripts}; img-src data:{server}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def page_file(name: str) -> str:
    """Returns the text of a file in `page/`."""
    return importlib.resources.files("everstep.report").joinpath("page", name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


FORMAT = 1


def write(run_dirs: Sequence[storage.PathLike] | storage.PathLike, output: storage.PathLike | None = None) -> Path:
    """Writes the report of one run, or of several side by side; the file is written completely or not at all.

    Args:
      run_dirs: A run directory, or several. The others are compared with the first.
      output: The file to write; by default `reports/report.html` in the run, or `reports/comparison.html` in the first
        of several runs.

    Returns:
      The path of the file.

    Raises:
      UsageError: A directory is not a run, or has nothing to show yet; or the file cannot be written.
    """
    given = [run_dirs] if isinstance(run_dirs, str | os.PathLike) else list(run_dirs)
    if not given:
        raise UsageError("a report needs at least one run", key="run_dirs", remedy="name its directory")
    directories = [Path(directory) for directory in given]
    default = directories[0] / "reports" / ("report.html" if len(directories) == 1 else "comparison.html")
    path = Path(output) if output is not None else default
    if path.is_dir():
        raise UsageError(
            "is a directory", key="output", received=str(path), remedy=f"name a file: {str(path / 'report.html')!r}"
        )
    text = report_html(directories)
    storage.prepare_directory(path.parent)
    storage.write_bytes(path, text.encode("utf-8", errors="replace"))
    return path


def report_html(directories: Sequence[Path]) -> str:
    """Returns the report of one run, or of several side by side, as a page.

    Raises:
      UsageError: A directory is not a run, or has nothing to show yet.
    """
    runs = read_runs(directories)
    return html(" · ".join(run.name for run in runs), _data(runs))


def _data(runs: Sequence[RunData]) -> dict[str, object]:
    """Returns the page's data; comparing comes first, because it adds columns to the tables."""
    comparisons = [found for number, run in enumerate(runs[1:], start=1) for found in compare(runs[0], run, number)]
    configs = [run.config for run in runs]
    return {
        "format": FORMAT,
        "runs": [run.as_data() for run in runs],
        "comparisons": comparisons,
        "configuration": differences(configs),
        "incomparable": incomparable(configs),
    }
