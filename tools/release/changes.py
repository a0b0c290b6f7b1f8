"""The section of one version in CHANGELOG.md."""

import re


def section(changelog: str, version: str) -> str:
    """Returns what was changed in a version: its lines, below a heading of their own.

    The heading is `## 0.2.0`, with a date or other words behind it; before a release it is `## Unreleased (0.2.0)`.
    """
    for part in re.split(r"^(?=## )", changelog, flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        if re.search(rf"(?<![\w.]){re.escape(version)}(?![\w.])", heading):
            return f"# Everstep {version}\n\n{body.strip()}\n"
    raise ValueError(f"CHANGELOG.md has no section for {version}")


def is_unreleased(changelog: str, version: str) -> bool:
    """Returns whether the version's heading still says that it is not released."""
    return f"## Unreleased ({version})" in changelog
