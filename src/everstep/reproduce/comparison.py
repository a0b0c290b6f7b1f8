"""Compares two runs: where they first differ, what explains it, and the verdict.

`compare` finds the first difference in weights and logged numbers; `causes` lists in what the runs themselves differ:
seed, configuration, data, code, packages, hardware; `judge` joins both in a `Verdict`.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import ABSENT, in_line, walk
from everstep.errors import UsageError
from everstep.reproduce.evidence import Evidence, Numbers
from everstep.run import FILES, FIRST_BATCH, Record, listed_files
from everstep.run import changed_files as changed_imports

SEED, CONFIG, DATA, CODE, PACKAGE, HARDWARE = "seed", "config", "data", "code", "package", "hardware"
RANDOMNESS, UNRECORDED = "randomness", "unrecorded"

_HEADER = ("imports",)
_HARDWARE = ("machine", "processor", "gpus", "platform", "cpu_count")
_LATER = (FILES, FIRST_BATCH)  # what older records do not have
_MOST_PACKAGES = 5
_TRACKING = ("trainer.tracking.",)  # where numbers go
_CATALOG = ("task.catalog.", "catalog.")  # where the data of a flow was: what it was, its fingerprint says
_LENGTH = ("trainer.train_steps", "trainer.epochs")


# -- where two runs differ ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ComparisonOutcome:
    """What was compared, and the first difference.

    Attributes:
      difference: A description of the first different number or weights; empty if nothing differs.
      step: The step of that difference.
      numbers: The number of compared logged numbers.
      weights: The step whose weights were compared; None if there is none.
    """

    difference: str
    step: int | None
    numbers: int
    weights: int | None

    @property
    def proven(self) -> str:
        """A description of what agrees, for outcomes without a difference."""
        parts = [f"the weights after step {self.weights}"] if self.weights is not None else []
        parts += [f"{self.numbers} logged numbers"] if self.numbers else []
        return " and ".join(parts)


def compare(original: Evidence, again: Evidence, upto: int | None = None) -> ComparisonOutcome:
    """Compares two runs, from the first step on.

    Args:
      original: The original run.
      again: The repeated run.
      upto: The last step to compare, which both have done; by default that of the original.
    """
    last = original.record["step"] if upto is None else upto
    whole = upto is None
    step, found = _first_number(original.numbers, again.numbers, last, whole)
    compared, at, weights = _weights(original, again, last)
    if weights and (step is None or at < step):
        step, found = at, weights
    if whole and not found and again.record["step"] != last:
        step = min(last, again.record["step"])
        found = f"step {step}: it ended after step {last}, now it ends after step {again.record['step']}"
    return ComparisonOutcome(found, step, _shared(original.numbers, again.numbers, last, whole), compared)


def _first_number(before: Numbers, now: Numbers, last: int, whole: bool) -> tuple[int | None, str]:
    for step in sorted(step for step in before if step <= last):
        if step not in now:
            if whole:
                return step, f"step {step}: it was logged, and is not any more"
            continue
        for name, value in before[step].items():
            other = now[step].get(name)
            if other != value and (other is not None or whole):
                now_text = "not logged" if other is None else other
                return step, f"step {step}: {name} was {value}, now it is {now_text}"
    return None, ""


def _weights(original: Evidence, again: Evidence, last: int) -> tuple[int | None, int, str]:
    """Returns the last step whose weights both have, the first whose weights differ, and a description, or empty."""
    compared: int | None = None
    at, found = last + 1, ""
    for step in reversed([step for step in original.steps() if step <= last]):
        before, now = original.weights(step), again.weights(step)
        if not before or not now:
            continue
        compared = step if compared is None else compared
        if before == now:  # then the weights of earlier steps were equal, too
            break
        at, found = step, f"step {step}: the weights were {before[:12]}…, now {now[:12]}…"
    return compared, at, found


def _shared(before: Numbers, now: Numbers, last: int, whole: bool) -> int:
    both = [step for step in before if step <= last and (whole or step in now)]
    return sum(len(before[step] if whole else before[step].keys() & now[step].keys()) for step in both)


# -- what they differ in -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something in which two runs differ.

    Attributes:
      kind: `seed`, `config`, `data`, `code`, `package`, `hardware`, `randomness`, or `unrecorded` for none of them.
      what: A description on one line.
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
    """Returns in what two runs differ, the most likely cause of different numbers first.

    A changed seed or configuration certainly alters the numbers; other data nearly always; other code, packages or
    hardware perhaps.

    Args:
      before: The record of the original run.
      now: The record of the repeated run; under `code`, the code as it is now.
      config_before: The configuration of the original run.
      config_now: The configuration of the repeated run.
      partial: Whether only the first steps were repeated: then the length is not a difference.
    """
    ignored = _TRACKING + (_LENGTH if partial else ()) + (_CATALOG if before.get("flow") else ())
    values = [*_values(config_before, config_now, ignored), *_changed_by_attempts(before)]
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


def _changed_by_attempts(before: Record) -> Iterator[Cause]:
    """Yields changes that a resumed attempt made: the stored configuration is only that of the last attempt."""
    for attempt in before["attempts"]:
        for change in attempt.get("changes", ()):
            yield Cause(CONFIG, f"{change.get('key')} was changed on the way, at step {attempt.get('from_step')}")


def _backend(before: Record, now: Record) -> Iterator[Cause]:
    if before["backend"] != now["backend"]:
        yield Cause(CONFIG, f"the backend was {before['backend']}, now it is {now['backend']}")


def _settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    """Yields environment variables that change what libraries compute; older records do not have them."""
    old, new = before.get("settings"), now.get("settings")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            was, is_ = (side.get(name, "not set") for side in (old, new))
            yield Cause(CONFIG, f"the variable {name} was {was}, now it is {is_}")


def _initial_weights(before: Any, now: Any) -> Iterator[Cause]:
    """Yields a cause if the initial weights differ; older records do not have their digests."""
    old, new = (
        [report.get("sha256") for report in side or () if isinstance(report, Mapping)] for side in (before, now)
    )
    if old and new and all((*old, *new)) and old != new:
        yield Cause(DATA, "the initial weights have other content")


def _data(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yields the differences of nested fingerprints: of splits, arrays and files."""
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
    """Whether two fingerprints have the same content, wherever it is stored."""
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
    names = changed_imports(before, now)
    if names is not None:
        commits = [_version(side) for side in (before, now)]
        versions = f" ({commits[0]} then, {commits[1]} now)" if before.get("commit") != now.get("commit") else ""
        yield from [Cause(CODE, f"other content in {listed_files(names)}{versions}")] if names else []
    elif before.get("commit") != now.get("commit") or before.get("sources") != now.get("sources"):
        yield Cause(CODE, f"was {_version(before)}, now it is {_version(now)}")
    elif before.get("commit") and not _same_changes(before, now):
        sides = [name for name, side in (("then", before), ("now", now)) if side.get("dirty")]
        yield Cause(CODE, f"{_version(before)}, with files changed {' and '.join(sides)}")


def _same_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two states of one commit are known to be equal: both unchanged, or with the same changes."""
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


def changed_files(original: Evidence, project: Path) -> list[Cause]:
    """Returns the recorded data files whose content has changed; folders, remote data and arrays are not checked.

    Args:
      original: The original run.
      project: The folder that paths are relative to.
    """
    named = [name for name, path, sha in _files(original) if _other(project / path, sha)]
    return [Cause(DATA, f"{name} has other content") for name in named]


def missing_files(original: Evidence, project: Path) -> list[Cause]:
    """Returns the recorded data files that no longer exist."""
    named = [(name, (project / path).absolute()) for name, path, _ in _files(original)]
    return [Cause(DATA, f"{name} is gone: {str(path)!r}") for name, path in named if not path.exists()]


def _files(original: Evidence) -> Iterator[tuple[str, str, str]]:
    for name, entry in original.record["data"].items():
        if isinstance(entry, Mapping) and isinstance(path := entry.get("path"), str) and "://" not in path:
            yield name, path, str(entry.get("sha256"))


def _other(path: Path, sha: str) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != sha


# -- the verdict -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a reproduction.

    Attributes:
      outcome: The first difference, if there is one.
      cause: What explains it, or other data or another seed without an effect; None if the runs are identical.
      others: Other differences of the two runs; for identical ones, all of them.
      run: The original run.
      again: The run that it was compared with; empty if that was a repetition that is not kept.
      notes: Further findings.
    """

    outcome: ComparisonOutcome
    cause: Cause | None
    others: tuple[Cause, ...]
    run: str
    again: str
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether everything that was compared agrees, with the same data and seed."""
        return self.cause is None

    def lines(self) -> list[str]:
        """Returns the verdict as lines of text."""
        if self.cause is None:
            noted = [f"noted, {cause}" for cause in self.others]
            return [f"identical: {self.outcome.proven} agree", *noted, *self.notes]
        seen = f"first seen at {self.outcome.difference}" if self.outcome.difference else self._nevertheless
        also = [f"also different, {cause}" for cause in self.others]
        return [f"different, {self.cause}", seen, *self.notes, *also]

    def explained(self, note: str, cause: Cause | None = None) -> "Verdict":
        """Returns the verdict with another note, and perhaps another cause; the former one is then among `others`."""
        if cause is None:
            return dataclasses.replace(self, notes=(*self.notes, note))
        former = (self.cause,) if self.cause is not None and self.cause.kind not in (RANDOMNESS, UNRECORDED) else ()
        return dataclasses.replace(self, cause=cause, others=(*former, *self.others), notes=(*self.notes, note))

    @property
    def _nevertheless(self) -> str:
        return f"{self.outcome.proven} agree nevertheless"

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict as a dictionary, for JSON."""
        return {
            "verdict": "identical" if self.identical else "different",
            "cause": dataclasses.asdict(self.cause) if self.cause else None,
            "first_difference": self.outcome.difference or None,
            "also_different": [dataclasses.asdict(cause) for cause in self.others],
            "notes": list(self.notes),
            "numbers_compared": self.outcome.numbers,
            "weights_compared_at": self.outcome.weights,
            "run": self.run,
            "again": self.again or None,
        }


def judge(original: Evidence, again: Evidence, upto: int | None = None) -> Verdict:
    """Compares two runs, and returns the verdict with the cause of a difference.

    Args:
      original: The original run.
      again: The repeated run.
      upto: The last step to compare, which both have done; by default that of the original.

    Raises:
      UsageError: The runs have no step in common that could be compared.
    """
    outcome = compare(original, again, upto)
    if not outcome.proven and not outcome.difference:
        up_to = "" if upto is None else f" up to step {upto}"
        raise UsageError(
            f"has nothing to compare: no logged number and no state{up_to}",
            key=str(original.directory),
            remedy=_hint(original),
        )
    found = causes(original.record, again.record, original.config, again.config, partial=upto is not None)
    names = str(original.directory), str(again.directory)
    if not outcome.difference and not any(cause.kind in (SEED, DATA) for cause in found):
        return Verdict(outcome, None, tuple(found), *names, notes=_not_compared(original))
    if not outcome.difference:  # by chance, or because too little was compared: it is a different experiment
        found.sort(key=lambda cause: cause.kind not in (SEED, DATA))
    unexplained = Cause(RANDOMNESS, "code, data, packages, hardware and seed are the same: something draws unseeded")
    first, *rest = found or [unexplained]
    return Verdict(outcome, first, tuple(rest), *names)


def _not_compared(original: Evidence) -> tuple[str, ...]:
    if original.numbers or not any(original.record["metrics"].values()):
        return ()
    return ("its numbers were not compared: history.csv is missing",)


def _hint(original: Evidence) -> str:
    known = sorted({*original.steps(), *original.numbers})
    return f"use --steps {known[0]} or more" if known else "train it again with checkpoints"
