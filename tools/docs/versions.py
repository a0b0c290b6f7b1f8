"""Builds the documentation of one version beside those of others, with a menu of versions.

    make docs VERSION=0.1       # site/0.1/, and site/index.html leads to the newest

The theme reads `site/versions.json`; the menu needs the site to be served, and pages that are opened from the disk go
without it. Nothing is uploaded, and no branch is written to.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

SITE = Path(__file__).parents[2] / "site"


def main() -> None:
    """Builds the version that the command line names, and lists all that are in site/."""
    version = sys.argv[1]
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        sys.exit(f"{version!r} is no version: write it as 0.1")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(SITE / version)]
    subprocess.run(command, check=True, env={**os.environ, "EVERSTEP_DOCS_VERSION": version})
    list_versions(SITE)


def list_versions(site: Path) -> list[str]:
    """Writes `versions.json` and the page that leads to the newest version; returns the versions, newest first."""
    folders = [path.name for path in site.iterdir() if re.fullmatch(r"\d+(\.\d+)*", path.name)]
    versions = sorted(folders, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if name == versions[0] else []} for name in versions
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1), "utf-8")
    (site / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
        f'<a href="{versions[0]}/index.html">Everstep {versions[0]}</a>\n',
        "utf-8",
    )
    return versions


if __name__ == "__main__":
    main()
