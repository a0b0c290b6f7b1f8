"""The HTML around the data: style and script are files of this package, put inline; the data are JSON, put as text.

Two things keep what stands in the data (ids, texts, names of classes) from ever being code. In the JSON every `<` is
spelled `\\u003c`, so that no text can end the element it is in; and the page's policy allows this one script and this
one style, by their digests, pictures that are inline, and nothing from any network.
"""

import base64
import hashlib
import html as markup
import importlib.resources
import json
import string
from typing import Any

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
"""In the order in which they build on each other."""


def html(title: str, data: Any) -> str:
    """Returns the page.

    Args:
      title: Plain text.
      data: What JSON can spell; NaN is an error.
    """
    style, script = page_file("page.css"), _script()
    return string.Template(page_file("page.html")).substitute(
        title=markup.escape(title),
        policy=policy(style, script),
        style=style,
        data=as_json(data),
        script=script,
    )


def as_json(data: Any) -> str:
    """Returns JSON that can stand in a `<script>` element: nothing in it can end the element, or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _script() -> str:
    parts = "\n".join(page_file(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def policy(style: str, script: str = "") -> str:
    """Returns a page's policy: this style, this script if there is one, inline pictures, and no network."""
    scripts = f"; script-src '{_digest(script)}'" if script else ""
    allowed = f"style-src '{_digest(style)}'{scripts}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def page_file(name: str) -> str:
    """Returns the text of a file in `page/`."""
    return importlib.resources.files("everstep.report").joinpath("page", name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
