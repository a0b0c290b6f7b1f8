"""Resuming with a changed configuration: what may change, what is refused, and what a person is told.

Each config class names, in `_may_change`, the fields that alter nothing in what a run computes. A change of any
other key needs the user's word.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import Config, dialect, load_file, sources
from everstep.config.difference import ABSENT, Change
from everstep.config.node import Node
from everstep.config.problem import join
from everstep.errors import UsageError, nearest
from everstep.run import key_path
from everstep.run.sameness import DATA
from everstep.run.stored import changes_since


def accepted_changes(
    directory: Path, params: Config, allow_change: Sequence[str] = (), gin: str = "", used: str = ""
) -> list[Change]:
    """Returns what differs from the configuration that a run has used so far, all of it accepted.

    Secrets are redacted in what is returned and in what is raised.

    Args:
      directory: The run directory.
      params: What it is to use now, with the backend resolved.
      allow_change: Keys that may change whatever they alter; one that holds others covers them.
      gin: The gin bindings it is to use now.
      used: The configuration that the newest checkpoint was trained with; by default what `config.yaml` says, which
        is that of the last attempt, whether or not it has trained a step.

    Raises:
      UsageError: A key has changed that alters what the run computes, or nobody knows whether one has; names all of
        them, with the remedies.
    """
    tree, trouble = (dialect.load(used), "") if used else _stored(directory)
    bindings = str(tree.get("gin", ""))
    tree = {key: value for key, value in tree.items() if key not in sources.HEADER}
    check_keys(directory, params, allow_change)
    if trouble and not set(params._names()) <= set(allow_change):
        raise _unknown(directory, trouble, params)
    changes = [_redacted(change) for change in changes_since(tree, params)]
    changes += [Change("gin", bindings, gin)] if bindings != redaction.tree(gin) else []
    refused = [c for c in changes if not _may_change(params, c.path) and not key_path.is_below(c.path, allow_change)]
    if refused:
        raise _refused(directory, refused)
    return changes


def check_keys(directory: Path, params: Config, allow_change: Iterable[str]) -> None:
    """Refuses keys that exist neither in the configuration nor in the one that a run has used so far.

    Raises:
      UsageError: Names the key and the nearest ones.
    """
    for key in allow_change:
        if key not in ("gin", DATA) and not any(
            key_path.find(root, key) is not ABSENT for root in (params, _stored(directory)[0])
        ):
            raise UsageError(f"--allow-change: there is no key {key!r}; {nearest(key, _keys(params.as_dict()))}")


def stored_seed(directory: Path) -> int | None:
    """Returns the seed that the run in a directory was started with; None where there is none."""
    seed = key_path.find(_stored(directory)[0], "runtime.seed")
    return seed if isinstance(seed, int) else None


def as_records(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Returns changes as `run.json` has them; a side on which the key did not exist is left out."""
    return [
        {"key": change.path}
        | {side: value for side, value in (("old", change.old), ("new", change.new)) if value is not ABSENT}
        for change in changes
    ]


def _stored(directory: Path) -> tuple[dict[str, Any], str]:
    """Returns the values in `config.yaml`, or none and why it cannot be read."""
    try:
        tree = load_file(directory / "config.yaml")
    except UsageError as error:
        return {}, str(error)
    is_empty = not set(tree) - set(sources.HEADER)
    return tree, f"config file {directory / 'config.yaml'} is empty" if is_empty else ""


def _redacted(change: Change) -> Change:
    name = key_path.steps(change.path)[-1]
    old, new = (v if v is ABSENT else redaction.tree({name: v})[name] for v in (change.old, change.new))
    return Change(change.path, old, new)


def _may_change(params: Config, path: str) -> bool:
    holder: Any = params
    for step in key_path.steps(path):
        if isinstance(holder, Node) and step in holder._changeable():
            return True
        holder = key_path.below(holder, step)
    return False


def _keys(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in tree.items():
        where = join(path, str(name))
        yield where
        if isinstance(value, Mapping):
            yield from _keys(value, where)


def _refused(directory: Path, changes: Sequence[Change]) -> UsageError:
    listed = "\n".join(f"  {change}" for change in changes)
    flags = " ".join(f"--allow-change {change.path}" for change in changes)
    names = ", ".join(f'"{change.path}"' for change in changes)
    values = "values" if len(changes) > 1 else "value"
    return UsageError(
        f"the run in {str(directory)!r} was trained with other values, and a change would alter what it computes:\n"
        f"{listed}\ngo on with the former {values}, name another directory, or allow the change: {flags} "
        f"(in Python: allow_change=[{names}])"
    )


def _unknown(directory: Path, trouble: str, params: Config) -> UsageError:
    allow = " ".join(f"--allow-change {name}" for name in params._names())
    return UsageError(
        f"the run in {str(directory)!r} has a checkpoint, but nobody knows what it was trained with ({trouble}): put "
        f"config.yaml back, name another directory, or go on with whatever has changed: {allow}"
    )
