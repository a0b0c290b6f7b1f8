"""Which files in a run directory are the run's; all others are the user's, and stay when the run is removed.

docs/reference/run-directory.md says who writes each of them.
"""

import fnmatch
from collections.abc import Iterator
from pathlib import Path

from everstep.errors import UsageError
from everstep.run.checkpoint_selection import best_folder
from everstep.run.layout_registry import layouts
from everstep.run.record import OWN_FILES, read

_NAMES = {
    *("run.json", *OWN_FILES, "params.yaml", "metrics.jsonl"),
    *(
        "checkpoints",
        "base",
        "ema_checkpoints",
        "exported_ckpts",
        "export",
        "reports",
        "samples",
        "train",
        "validation",
    ),
    *("processes", "profile", "programs", "spool", "submissions", "wandb"),
    *(".lock", ".lock.json", ".heartbeat", ".compiled", ".uploaded"),
}
_PATTERNS = ("operative_config*.gin", "export-*", ".everstep-*")

_INSIDE = {
    "checkpoints": ("[0-9]*", ".*", "*tmp*"),
    "train": ("events.out.tfevents*", "plugins"),
    "validation": ("events.out.tfevents*", "plugins"),
}
"""What a run writes into folders that a folder of data may have, too."""


def foreign_files(directory: Path) -> list[str]:
    """Returns the files and folders in a run directory that the run has not written, relative to it, sorted.

    Those that were there before the run began are among them, whatever they are called.
    """
    if any(layout.settings and (directory / layout.settings).is_file() for layout in layouts()):
        return []  # the directory is the entry point's, and the user's code writes results into it
    own, before = _own_names(directory), _there_before(directory)
    return sorted(_foreign(directory, own, before))


def _foreign(directory: Path, own: set[str], before: set[str]) -> Iterator[str]:
    for path in directory.iterdir():
        name = path.name
        if name in before or not (name in own or _fits(name, _PATTERNS)):
            yield name
        elif name in _INSIDE and path.is_dir() and not path.is_symlink():
            yield from (f"{name}/{part.name}" for part in path.iterdir() if not _fits(part.name, _INSIDE[name]))


def _own_names(directory: Path) -> set[str]:
    """Returns the names of the run's files, with those of its entry point."""
    found = {*_NAMES, best_folder(directory).relative_to(directory).parts[0]}
    for layout in layouts():
        if any((directory / name).exists() for name in (layout.training, *layout.progress) if name):
            found |= {*layout.parts, *layout.before_record, *(name.strip("/") for name in layout.progress)}
    return found


def _there_before(directory: Path) -> set[str]:
    try:
        return set(read(directory).get("other_files") or ())
    except UsageError:
        return set()


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
