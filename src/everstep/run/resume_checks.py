"""What a resumed run may change: its configuration key by key, its data, the versions of its libraries.

Each config class lists in `_may_change` the fields that do not alter what a run computes. A change of any other key, or
of the training data, is refused with `ChangeRefused`, unless the user allows it: `--allow-change KEY`, in Python
`allow_change=[KEY]`. Other library versions are a warning.
"""

import contextlib
import copy
import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import (
    ABSENT,
    HEADER,
    Change,
    Config,
    all_paths,
    at_default,
    child,
    dialect,
    differences,
    find_key,
    in_line,
    is_below,
    leaves,
    load_file,
    split_path,
)
from everstep.data import ArrayStream, CountedStream, RowsStream, Stream
from everstep.errors import Problem, UsageError, join, nearest
from everstep.run.environments import environment, file_fingerprints, fingerprint
from everstep.task import differing_arguments

logger = logging.getLogger(__name__)

DATA = "data"
"""The name of the training data for `--allow-change`."""

_MOST_CHANGES = 5
"""How many changes a message shows."""

_MANY_KEYS = 4
"""So many keys of one section are allowed together."""

FILES, FIRST_BATCH = "files", "first_batch"
"""The keys of the fingerprints of files, and of a first batch."""

_FACTS = {"kind": "kind of stream", "batches_per_epoch": "batches an epoch", "image_digest": "the images"}
"""What a fingerprint tells of a stream that is not arrays, in words."""


class ChangeRefused(UsageError):
    """A resumed run would compute something else than before.

    There is one problem per change, whose `key` is what `allow_change` takes; the last problem has no key, and its
    remedy tells how to allow them, where that is possible. The message shows the first changes of many. An entry point
    renames the keys (`errors.renamed_keys`), or creates its own error.
    """

    @property
    def keys(self) -> list[str]:
        """The changed keys, each once."""
        return list(dict.fromkeys(problem.key for problem in self.problems if problem.key))

    def in_python(self) -> "ChangeRefused":
        """Returns the error for an entry point without a command: the remedy names no option."""
        return self._with_last(has_command=False)

    def with_remedy(self, another: str) -> "ChangeRefused":
        """Returns the error for an entry point that chooses the directory itself.

        Args:
          another: How its users start a run in another directory.
        """
        return self._with_last(has_command=True, another=another)

    def with_more(self, others: Iterable[Problem], keys: Iterable[str], reason: str = "") -> "ChangeRefused":
        """Returns the error with what else keeps the run from being resumed.

        Args:
          others: The other problems.
          keys: What has to be allowed in all; none where it cannot be allowed, so that no remedy says so.
          reason: Why not; by default the reason of this error.
        """
        *changed, last = self.problems
        mentions = _placeholders(keys)
        last = dataclasses.replace(last, reason=reason or last.reason, mentions=mentions)
        return ChangeRefused([*changed, *others, last])._with_last(has_command=True)

    def _with_last(self, **remedy: Any) -> "ChangeRefused":
        *changed, last = self.problems
        return ChangeRefused(
            [*changed, dataclasses.replace(last, remedy=_remedy(len(changed), last.mentions, **remedy))]
        )

    def __str__(self) -> str:
        *changed, last = map(str, self.problems)
        more = [f"and {len(changed) - _MOST_CHANGES} more"] if len(changed) > _MOST_CHANGES + 1 else []
        return "\n".join([*(changed[:_MOST_CHANGES] if more else changed), *more, last])


@contextlib.contextmanager
def allowed_in_python() -> Iterator[None]:
    """Inside the block a refused change names only `allow_change=[…]`, and not `--allow-change`."""
    try:
        yield
    except ChangeRefused as refused:
        raise refused.in_python().with_traceback(refused.__traceback__) from refused.__cause__


def refuse_changes(changed: Sequence[Problem], reason: str, keys: Iterable[str] = ()) -> ChangeRefused:
    """Returns the error that refuses changes.

    Args:
      changed: A problem for each change; none where the changes are unknown.
      reason: What they would alter.
      keys: What has to be allowed where the changes are unknown.
    """
    mentions = _placeholders([*(problem.key for problem in changed), *keys])
    remedy = _remedy(len(changed), mentions, has_command=True)
    return ChangeRefused([*changed, Problem("", reason, remedy=remedy, mentions=mentions)])


def _placeholders(keys: Iterable[str]) -> dict[str, str]:
    """Returns the keys to allow, each with a placeholder; many of one section are allowed by its name."""
    each = list(dict.fromkeys(keys))
    sections = [key.rpartition(".")[0] for key in each]
    many = {section for section in sections if "." in section and sections.count(section) >= _MANY_KEYS}
    short = [section if section in many else key for key, section in zip(each, sections, strict=True)]
    return {f"key {number}": key for number, key in enumerate(dict.fromkeys(short))}


def _remedy(
    changes: int, placeholders: Iterable[str], has_command: bool, another: str = "use another directory for a new run"
) -> str:
    """Returns how to go on; keys are placeholders, which each entry point fills with its own names."""
    keys = [f"{{{name}}}" for name in placeholders]
    former = f"restore the former value{'s' if changes > 1 else ''}" if changes else "restore config.yaml"
    if not keys:
        return f"{another}, or {former}"
    python = f"allow_change={json.dumps(keys)}"
    options = " ".join(f"--allow-change {key}" for key in keys)
    allow = f"{options} (in Python: {python})" if has_command else python
    return f"{another}, {former}, or allow the change: {allow}"


# -- the configuration -------------------------------------------------------------------------------------------------


def accepted_changes(
    directory: Path, params: Config, allow_change: Sequence[str] = (), gin: str = "", used: str = ""
) -> list[Change]:
    """Returns the accepted changes since the configuration that a run has used so far.

    Secrets are redacted in the result and in errors.

    Args:
      directory: The run directory.
      params: The configuration to use now, with the backend resolved.
      allow_change: Keys that may change whatever they alter; a section covers its keys.
      gin: The gin bindings to use now.
      used: The configuration that the newest checkpoint was trained with; by default that of `config.yaml`, which the
        last attempt wrote, even if it trained no step.

    Raises:
      ChangeRefused: A key has changed that alters what the run computes; lists all of them.
      UsageError: The stored configuration cannot be read, so the changes are unknown.
    """
    tree, trouble = (dialect.load(used), "") if used else _read_stored(directory)
    old_gin = str(tree.get("gin", ""))
    tree = {key: value for key, value in tree.items() if key not in HEADER}
    check_keys(directory, params, allow_change)
    if trouble and not set(params._names()) <= set(allow_change):
        reason = f"the run in {str(directory)!r} has a checkpoint, but the configuration it was trained with is unknown"
        raise refuse_changes([], f"{reason} ({trouble})", params._names())
    changes = [_redacted(change) for change in changes_since(tree, params)]
    changes += [Change("gin", old_gin, gin)] if old_gin != redaction.tree(gin) else []
    refused = [c for c in changes if not _may_change(params, c) and not is_below(c.path, allow_change)]
    if refused:
        changed = [Problem(c.path, _difference(c)) for c in refused]
        raise refuse_changes(changed, f"this would alter what the run in {str(directory)!r} computes")
    return changes


def _difference(change: Change) -> str:
    """Returns what has changed; of a layer only the arguments that differ: `units 16 -> 32`."""
    layers = [value for value in (change.old, change.new) if isinstance(value, str)]
    if parts := differing_arguments(layers) if len(layers) == 2 else []:
        return ", ".join(f"{name} {_shown(old)} -> {_shown(new)}" for name, (old, new) in parts)
    return f"{in_line(change.old)} -> {in_line(change.new)}"


def _shown(argument: str | None) -> str:
    return "(absent)" if argument is None else argument


def check_keys(directory: Path, params: Config, allow_change: Iterable[str]) -> None:
    """Refuses keys that exist neither in the configuration nor in the one that a run has used so far.

    Raises:
      UsageError: There is no such key; names the nearest ones.
    """
    for key in allow_change:
        known = (params, _read_stored(directory)[0])
        if key not in ("gin", DATA) and all(find_key(root, key) is ABSENT for root in known):
            close = nearest(key, all_paths(params.as_dict()))
            raise UsageError("there is no such key", key="allow_change", received=key, remedy=close)


def stored_seed(directory: Path) -> int | None:
    """Returns the seed that the run in a directory was started with; None if there is none."""
    seed = find_key(_read_stored(directory)[0], "runtime.seed")
    return seed if isinstance(seed, int) else None


def as_records(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Returns changes in the format of `run.json`; `old` or `new` is omitted if the key did not exist."""
    return [
        {"key": change.path}
        | {side: value for side, value in (("old", change.old), ("new", change.new)) if value is not ABSENT}
        for change in changes
    ]


def changes_since(tree: Mapping[str, Any], params: Config) -> list[Change]:
    """Returns every key whose value differs between a stored configuration and this one.

    The stored values are converted to this configuration's types first, so that 1 and 1.0 are equal for a float field.
    A key that is not stored has changed if its value is not the default; a stored key that no longer exists has
    changed. A redacted value is not compared.

    Args:
      tree: The stored values.
      params: The configuration.
    """
    old, lost = _typed(tree, params)
    changed = [*lost, *differences(old, params)]
    paths = [change.path for change in changed]
    return changed + [change for change in _added(tree, params) if not is_below(change.path, paths)]


def _read_stored(directory: Path) -> tuple[dict[str, Any], str]:
    """Returns the values in `config.yaml`, or none and the reason why it cannot be read."""
    try:
        tree = load_file(directory / "config.yaml")
    except UsageError as error:
        return {}, str(error)
    is_empty = not set(tree) - set(HEADER)
    return tree, f"config file {directory / 'config.yaml'} is empty" if is_empty else ""


def _redacted(change: Change) -> Change:
    name = split_path(change.path)[-1]
    old, new = (v if v is ABSENT else redaction.tree({name: v})[name] for v in (change.old, change.new))
    return Change(change.path, old, new)


def _may_change(params: Config, change: Change) -> bool:
    holder: Any = params
    for part in split_path(change.path):
        if isinstance(holder, Config) and (
            part in holder._changeable() or holder._are_interchangeable(part, change.old, change.new)
        ):
            return True
        holder = child(holder, part)
    return False


def _typed(tree: Mapping[str, Any], params: Config) -> tuple[Config, list[Change]]:
    """Returns a copy of `params` with the stored values, and those that do not fit."""
    now = params.as_dict()
    old, rest = params.replace(), copy.deepcopy(_with_secrets(tree, redaction.tree(dialect.escaped(now)), now))
    lost: list[Change] = []
    while True:
        try:
            old.override(rest)
            return old, lost
        except UsageError as error:  # one problem at a time: the next one may be inside the same value
            path, value = _cut(rest, error.key)
            lost.append(Change(path, value, find_key(params.as_dict(), path)))


def _with_secrets(stored: Any, shown: Any, now: Any) -> Any:
    """Returns the stored values, with the current secrets in place of redaction marks and references.

    Args:
      stored: The stored values.
      shown: The current values, as they would be stored.
      now: The current values.
    """
    if stored == shown or redaction.is_redacted(stored):
        return now
    if isinstance(stored, Mapping) and isinstance(shown, Mapping):
        return {key: _with_secrets(v, shown[key], now[key]) if key in now else v for key, v in stored.items()}
    if isinstance(stored, list) and isinstance(shown, list | tuple) and len(stored) == len(shown):
        return [_with_secrets(*three) for three in zip(stored, shown, now, strict=True)]
    return stored


def _cut(tree: dict[str, Any], path: str) -> tuple[str, Any]:
    """Removes the value at a path from a tree, or the innermost dictionary entry that contains it; returns both."""
    holder: Any = tree
    found: list[tuple[dict[Any, Any], Any, str]] = []
    done = ""
    for part in split_path(path):
        value = child(holder, part)
        if value is ABSENT:
            break
        done = join(done, part)
        if isinstance(holder, dict):
            found.append((holder, next(key for key in holder if str(key) == part), done))
        holder = value
    owner, key, where = found[-1]
    return where, owner.pop(key)


def _added(tree: Mapping[str, Any], params: Config) -> Iterator[Change]:
    """Yields the values whose keys are not stored, unless they are the defaults of their class."""
    usual = at_default(params)
    for path, value in leaves(params.as_dict()):
        if find_key(tree, path) is ABSENT and not is_below(path, usual):
            yield Change(path, ABSENT, value)


# -- the data ----------------------------------------------------------------------------------------------------------


def data_fingerprints(trainer: Any) -> dict[str, Any]:
    """Returns fingerprints of the data: digests of arrays and files, the kind and length of other streams.

    Training data that comes from the user's code is identified by its first batch.
    """
    streams = {"train": trainer.train_stream, "validation": trainer.validation_stream}
    found = {kind: _fingerprint(stream) for kind, stream in streams.items() if stream is not None}
    if trainer.train_stream is not None and _is_opaque(trainer.train_stream):
        found["train"][FIRST_BATCH] = fingerprint(trainer.train_example)
    return found


def _fingerprint(stream: Stream) -> dict[str, Any]:
    if isinstance(stream, ArrayStream):
        return fingerprint(stream.arrays)
    if isinstance(stream, RowsStream):
        return fingerprint(stream.parts)
    if isinstance(stream, CountedStream):  # a wrapper
        return _fingerprint(stream.sources[""])
    parts = {name: _fingerprint(part) for name, part in stream.sources.items()}
    inside = {f"{name}/{key}".strip("/"): value for name, part in parts.items() for key, value in part.items()}
    files = {FILES: file_fingerprints(stream.files)} if stream.files else {}
    return {
        **inside,
        **files,
        **stream.fingerprint,
        "kind": type(stream).__name__,
        "batches_per_epoch": stream.batches_per_epoch,
    }


def _is_opaque(stream: Stream) -> bool:
    """Returns whether the content of a stream is known only by the batches that it yields."""
    if stream.sources:
        return all(map(_is_opaque, stream.sources.values()))
    return not (isinstance(stream, ArrayStream | RowsStream) or stream.files)


def check_data(before: Mapping[str, Any], now: Mapping[str, Any], allow_change: Sequence[str]) -> None:
    """Refuses other training data than the checkpoint was trained on.

    Raises:
      ChangeRefused: It differs, and `data` is not among the allowed keys; lists what differs.
    """
    differences = list(_data_differences(before.get("train", {}), now.get("train", {})))
    if not differences or DATA in allow_change:
        for difference in differences:
            logger.warning("resuming with other data: %s", difference)
        return
    raise refuse_changes([Problem(DATA, difference) for difference in differences], "the run was trained on other data")


def _data_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for path in sorted({*before, *now}):
        old, new = before.get(path), now.get(path)
        stream, _, name = path.rpartition("/")
        if old == new or name == FIRST_BATCH:  # it differs with an unseeded shuffle
            continue
        if name == FILES:
            yield from _changed_files(old, new)
        elif isinstance(old, Mapping) or isinstance(new, Mapping):
            yield f"array {path or 'x'} {_changed_array(old, new)}"
        else:  # a fact of a stream, or of one that it is built from
            what = _FACTS.get(name, name)
            yield f"{what}{f' {stream}' if stream else ''}: {before.get(path, ABSENT)} -> {now.get(path, ABSENT)}"


def _changed_array(old: Any, new: Any) -> str:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return "is gone" if isinstance(old, Mapping) else "is new"
    if old["shape"] == new["shape"] and old["dtype"] == new["dtype"]:
        return "has other content"
    return f"was {old['dtype']}{old['shape']}, now it is {new['dtype']}{new['shape']}"


def _changed_files(before: Any, now: Any) -> Iterator[str]:
    """Yields which files differ; nothing if the record is too old to contain them."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            yield f"file {name} is {'new' if name in now else 'gone'}"
        elif before[name] != now[name]:
            yield f"file {name} has other content"


# -- the libraries -----------------------------------------------------------------------------------------------------


def packages() -> dict[str, str]:
    """Returns the versions of the numerical libraries."""
    return dict(environment()["packages"])


def warn_about_versions(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Warns about changed library versions: the arithmetic may have changed, too."""
    changed = [f"{name} {old} -> {now[name]}" for name, old in before.items() if name in now and now[name] != old]
    if changed:
        logger.warning("resuming with other versions, so the bits may differ: %s", ", ".join(changed))


def report_loop(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Logs that steps are run in another way than in the last attempt, such as eagerly, or on another kind of GPU."""
    names = [name for name in ("device", "kind", "loop") if name in before and before[name] != now.get(name)]
    if names:
        changed = [f"{name} {before[name]} -> {now.get(name)}" for name in names]
        effect = "" if names == ["loop"] else ", so the bits may differ"
        logger.warning("steps are run in another way than in the last attempt%s: %s", effect, ", ".join(changed))


def moved(attempts: Sequence[Mapping[str, Any]], now: Mapping[str, Any], step: int) -> list[Change]:
    """Returns and logs how the processes and devices differ from those of the last attempt, for the run's record.

    Args:
      attempts: The last attempt; none for a new run.
      now: The number of processes, the mesh and the sharding of this one.
      step: The step at which it begins.
    """
    before = attempts[0] if attempts else {}
    changes = [Change(key, before[key], value) for key, value in now.items() if before.get(key, value) != value]
    if changes:
        logger.warning("from step %d on, numbers are rounded otherwise: %s", step, "; ".join(map(str, changes)))
    return changes
