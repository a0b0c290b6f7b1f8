"""What two runs were made of, and in what that differs: the seed, the configuration, data, code, packages, hardware."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from everstep import redaction
from everstep.config.difference import ABSENT, in_line
from everstep.config.layers import walk
from everstep.run.record import Record
from everstep.run.resume_checks import FILES, FIRST_BATCH

SEED, CONFIG, DATA, CODE, PACKAGE, HARDWARE = "seed", "config", "data", "code", "package", "hardware"
RANDOMNESS, UNRECORDED = "randomness", "unrecorded"

_HEADER = ("imports",)
_HARDWARE = ("machine", "processor", "gpus", "platform", "cpu_count")
_LATER = (FILES, FIRST_BATCH)  # what older records do not have
_MOST_PACKAGES = 5
_TRACKING = ("trainer.tracking.",)  # where numbers go
_CATALOG = ("task.catalog.", "catalog.")  # where the data of a flow was: what it was, its fingerprint says
_LENGTH = ("trainer.train_steps", "trainer.epochs")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something that two runs do not have in common.

    Attributes:
      kind: `seed`, `config`, `data`, `code`, `package`, `hardware`, `randomness`, or `unrecorded`: none of them.
      what: What exactly, on a line.
    """

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def causes(
    before: Record,
    now: Record,
    config_before: Mapping[str, Any],
    config_now: Mapping[str, Any],
    partial: bool = False,
) -> list[Cause]:
    """Returns in what two runs differ, what explains most first.

    A seed or a value that was changed alters the numbers for certain; other data nearly always; other code, packages
    or hardware perhaps.

    Args:
      before: The record of the run.
      now: That of what is to be the same; under `code`, the code as it is now.
      config_before: The configuration that the run was trained with.
      config_now: The one that is used now.
      partial: Whether it was to end earlier now: how long it runs is then no difference.
    """
    ignored = _TRACKING + (_LENGTH if partial else ()) + (_CATALOG if before.get("flow") else ())
    values = [*_values(config_before, config_now, ignored), *_changed_on_the_way(before)]
    return [
        *(cause for cause in values if cause.kind == SEED),
        *(cause for cause in values if cause.kind == CONFIG),
        *_backend(before, now),
        *_settings(before["environment"], now["environment"]),
        *(Cause(DATA, what) for what in _data(before["data"], now["data"], "")),
        *_initial_weights(before.get("initial_weights"), now.get("initial_weights")),
        *_code(before["code"], now["code"]),
        *_packages(before["environment"], now["environment"]),
        *_hardware(before["environment"], now["environment"]),
    ]


def _values(before: Mapping[str, Any], now: Mapping[str, Any], ignored: tuple[str, ...]) -> Iterator[Cause]:
    old, new = dict(walk(before)), dict(walk(now))
    for path in dict.fromkeys([*old, *new]):
        one, other = old.get(path, ABSENT), new.get(path, ABSENT)
        if path in _HEADER or path.startswith(ignored) or in_line(one) == in_line(other):
            continue
        kind = SEED if path.rpartition(".")[2] == "seed" else CONFIG
        yield Cause(kind, redaction.text(f"{path} was {in_line(one)}, now it is {in_line(other)}"))


def _changed_on_the_way(before: Record) -> Iterator[Cause]:
    """Yields what an attempt that went on had changed: the stored configuration is only that of the last."""
    for attempt in before["attempts"]:
        for change in attempt.get("changes", ()):
            yield Cause(CONFIG, f"{change.get('key')} was changed on the way, at step {attempt.get('from_step')}")


def _backend(before: Record, now: Record) -> Iterator[Cause]:
    if before["backend"] != now["backend"]:
        yield Cause(CONFIG, f"the backend was {before['backend']}, now it is {now['backend']}")


def _settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    """Yields variables of the process that change what libraries compute; older records do not have them."""
    old, new = before.get("settings"), now.get("settings")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            was, is_ = (side.get(name, "not set") for side in (old, new))
            yield Cause(CONFIG, f"the variable {name} was {was}, now it is {is_}")


def _initial_weights(before: Any, now: Any) -> Iterator[Cause]:
    """Yields that the weights to start from are others; older records do not tell."""
    old, new = (
        [report.get("sha256") for report in side or () if isinstance(report, Mapping)] for side in (before, now)
    )
    if old and new and all((*old, *new)) and old != new:
        yield Cause(DATA, "the initial weights have other content")


def _data(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yields what differs in fingerprints, which nest: a split, an array or a file, what is said of it."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        where = f"{path}/{name}".strip("/")
        unknown = None in (old, new) and str(name).rpartition("/")[2] in _LATER
        if old == new or unknown or _same_content(old, new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and not _is_content(old):
            yield from _data(old, new, where)
        else:
            yield f"{where} {_changed(old, new)}"


def _same_content(old: Any, new: Any) -> bool:
    """Tells whether two fingerprints are of the same bytes, wherever these are."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("sha256")):
        return False
    return all(old.get(key) == new.get(key) for key in ("sha256", "dtype", "shape"))


def _is_content(value: Any) -> bool:
    return isinstance(value, Mapping) and not value.keys().isdisjoint(("sha256", "sampled", "bytes"))


def _changed(old: Any, new: Any) -> str:
    if old is None or new is None:
        return "is new" if old is None else "is gone"
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        sizes = [(old.get(key), new.get(key)) for key in ("dtype", "shape", "bytes") if old.get(key) != new.get(key)]
        return f"was {sizes[0][0]}, now it is {sizes[0][1]}" if sizes else "has other content"
    return f"was {old}, now it is {new}"


def _code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    if before.get("commit") != now.get("commit") or before.get("sources") != now.get("sources"):
        yield Cause(CODE, f"was {_version(before)}, now it is {_version(now)}")
    elif before.get("commit") and not _same_changes(before, now):
        sides = [name for name, side in (("then", before), ("now", now)) if side.get("dirty")]
        yield Cause(CODE, f"{_version(before)}, with files changed {' and '.join(sides)}")


def _same_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Tells whether two states of one commit are known to be the same: unchanged, or changed alike."""
    if not before.get("dirty") and not now.get("dirty"):
        return True
    return bool(before.get("changes")) and before.get("changes") == now.get("changes")


def _version(code: Mapping[str, Any]) -> str:
    if code.get("commit"):
        return f"commit {str(code['commit'])[:12]}"
    return f"sources {str(code['sources'])[:12]}" if code.get("sources") else "unknown"


def _packages(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    old, new = before.get("packages", {}), now.get("packages", {})
    old, new = ({**packages, "python": side.get("python")} for packages, side in ((old, before), (new, now)))
    yield from (Cause(PACKAGE, what) for what in _versions(old, new))
    if (others := before.get("installed")) and (others_now := now.get("installed")):
        known = dict.fromkeys((*old, *new))
        rest = list(_versions({**others, **known}, {**others_now, **known}))
        yield from (Cause(PACKAGE, what) for what in rest[:_MOST_PACKAGES])
        if more := rest[_MOST_PACKAGES:]:
            yield Cause(PACKAGE, f"{len(more)} more have other versions, too")


def _versions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name) or 'not there'}, now it is {new.get(name) or 'not there'}"


def _hardware(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    old, new = before.get("engine", {}), now.get("engine", {})
    pairs = [(name, before[name], now[name]) for name in _HARDWARE if name in before and name in now]
    pairs += [(name, old.get(name), new.get(name)) for name in sorted(old.keys() & new.keys())]
    for name, one, other in pairs:
        if one != other:
            yield Cause(HARDWARE, f"{name} was {_shown(one)}, now it is {_shown(other)}")


def _shown(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
