"""How an extra of this package is installed: from an index, or from the clone that this installation came from."""

import functools
import importlib.metadata
import json
import os
import urllib.parse
from pathlib import Path


def install_command(extra: str) -> str:
    """Returns the command that installs an extra: `pip install 'everstep[sweep]'`, in a clone `pip install '.[sweep]'`.

    A package that was installed from a folder need not be on any index, so the command names that folder.
    """
    options, source = _origin()
    if "+" in source and not source.startswith(os.sep):
        return f"pip install 'everstep[{extra}] @ {source}'"
    is_here = source.startswith(os.sep) and Path(source) == Path.cwd()
    return f"pip install {options}'{'.' if is_here else source}[{extra}]'"


@functools.cache
def _origin() -> tuple[str, str]:
    """Returns options of pip, and where this package was installed from: a folder, `git+https://…`, or its name."""
    try:
        text = importlib.metadata.distribution("everstep").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        root = Path(__file__).resolve().parents[2]
        return ("-e ", str(root)) if (root / "pyproject.toml").is_file() else ("", "everstep")
    found = json.loads(text) if text else {}
    url = str(found.get("url", ""))
    if kind := found.get("vcs_info", {}).get("vcs"):
        return "", f"{kind}+{url}"
    folder = urllib.parse.unquote(url.removeprefix("file://")) if url.startswith("file://") else ""
    if folder and (Path(folder) / "pyproject.toml").is_file():  # no wheel, and no clone that is gone
        return "-e " if found.get("dir_info", {}).get("editable") else "", folder
    return "", "everstep"
