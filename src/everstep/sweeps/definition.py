"""What a sweep is, `sweep.json` in its directory: written once, compared with every later command."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import Problem, UsageError, nearest, show
from everstep.sweeps import FILE
from everstep.sweeps.space import Space
from everstep.sweeps.target import Target, target_from_dict

FORMAT = 2  # 1 reported evaluations to pruners by step
SAMPLERS = ("tpe", "random", "grid", "cmaes", "nsga2")
PRUNERS = ("none", "median", "hyperband")
MODES = ("min", "max")


@dataclasses.dataclass(frozen=True)
class Definition:
    """What a sweep is.

    Attributes:
      target: What is swept.
      space: Over which values.
      metrics: The metrics to optimise; several make a front of best trials. Empty text: the loss that the first
        trial to end has logged.
      modes: `min` or `max` for each.
      sampler: How values are chosen.
      pruner: How trials are stopped early.
      seed: The seed of the sampler.
      trials: How many trials there are to be.
      storage: The URL of Optuna's storage; empty: `sweep.db` in the directory.
    """

    target: Target
    space: Space
    metrics: tuple[str, ...]
    modes: tuple[str, ...]
    sampler: str = "tpe"
    pruner: str = "none"
    seed: int = 0
    trials: int = 20
    storage: str = ""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise UsageError(problems[0])

    def _problems(self) -> Any:
        for option, name, known in (("--sampler", self.sampler, SAMPLERS), ("--pruner", self.pruner, PRUNERS)):
            if name not in known:
                yield Problem(option, "there is no such one", received=name, remedy=nearest(name, known))
        for mode in self.modes:
            if mode not in MODES:
                yield Problem("--mode", "expected min or max", received=mode)
        if len(self.metrics) != len(self.modes):
            text = f"there are {len(self.metrics)} metrics and {len(self.modes)} modes"
            yield Problem("--mode", text, remedy="give one for each metric, in their order")
        if len(set(self.metrics)) < len(self.metrics):
            yield Problem("--metric", "is given twice", received=self.metrics[0])
        if self.trials < 1:
            yield Problem("--trials", "must be at least 1", received=self.trials)
        if len(self.metrics) > 1 and self.pruner != "none":
            yield Problem("--pruner", "works with one metric only", received=self.pruner, remedy="omit it")
        if len(self.metrics) > 1 and self.sampler == "cmaes":
            yield Problem("--sampler", "works with one metric only", received=self.sampler, remedy="use nsga2 or tpe")
        if self.sampler == "cmaes" and (odd := [one for one in self.space.dimensions if one.kind == "categorical"]):
            yield Problem(odd[0].key, "cmaes needs numbers", remedy="use another --sampler", origin=odd[0].origin)

    @property
    def is_multi_objective(self) -> bool:
        """Whether several metrics are optimised."""
        return len(self.metrics) > 1

    @property
    def shown_metric(self) -> str:
        """The metrics for people: `validation_loss (min)`."""
        return shown_metric(self.metrics, self.modes)

    def identity(self) -> dict[str, Any]:
        """Returns what must not change: trials with another space or metric cannot be compared."""
        identity = {
            "target": redaction.tree({**self.target.as_dict(), "root": ""}),
            "space": redaction.tree(self.space.as_dict()),
            "metrics": list(self.metrics),
            "modes": list(self.modes),
        }
        return dict(json.loads(json.dumps(identity)))  # as a storage returns it

    def digest(self) -> str:
        """Returns ten characters that differ where the identity does."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:10]

    def as_dict(self) -> dict[str, Any]:
        """Returns it in plain values."""
        found = {**dataclasses.asdict(self), "target": self.target.as_dict(), "space": self.space.as_dict()}
        return {"format": FORMAT, **found, "metrics": list(self.metrics), "modes": list(self.modes)}

    def save(self, directory: Path) -> None:
        """Writes `sweep.json`, which only the user can read: a storage's URL may have a password in it."""
        storage.write_json(directory / FILE, self.as_dict())
        (directory / FILE).chmod(0o600)

    @classmethod
    def load(cls, directory: Path) -> "Definition":
        """Returns the sweep in a directory.

        Raises:
          UsageError: There is none, or another version wrote it.
        """
        if not (directory / FILE).is_file():
            raise UsageError("is not a sweep: it has no sweep.json", key="DIR", received=str(directory))
        tree = storage.read_json(directory / FILE)
        if not isinstance(tree, Mapping) or tree.get("format") != FORMAT:
            raise UsageError(
                f"was written by another version of everstep (format {tree.get('format') if tree else None!r})",
                key=FILE,
                received=str(directory / FILE),
                remedy="use that version, or another --sweep-dir",
            )
        redaction.learn(tree)
        return cls(
            target_from_dict(tree["target"]),
            Space.from_dict(tree["space"]),
            tuple(tree["metrics"]),
            tuple(tree["modes"]),
            **{name: tree[name] for name in ("sampler", "pruner", "seed", "trials", "storage")},
        )


def shown_metric(metrics: Sequence[str], modes: Sequence[str]) -> str:
    """Returns metrics for people: `validation_loss (min)`."""
    names = [name or "validation_loss, else the test loss" for name in metrics]
    return ", ".join(f"{name} ({mode})" for name, mode in zip(names, modes, strict=True))


def require_same(stored: Mapping[str, Any], wanted: Definition, where: str) -> None:
    """Refuses a sweep whose trials could not be compared with those that a directory or storage has.

    Raises:
      UsageError: Names what differs first.
    """
    for name, value in wanted.identity().items():
        held = stored.get(name)
        if held == value:
            continue
        was, now = _difference(held, value)
        raise UsageError(
            f"already has a sweep with another {name}: {show(was, 60)} there, {show(now, 60)} here",
            key="--storage" if "://" in where else "--sweep-dir",
            received=where,
            remedy="use another one",
        )


def _difference(held: Any, value: Any) -> tuple[Any, Any]:
    """Returns the first parts that differ."""
    if isinstance(held, Mapping) and isinstance(value, Mapping):
        for key in [*held, *(key for key in value if key not in held)]:
            if held.get(key) != value.get(key):
                return _difference(held.get(key), value.get(key))
    if isinstance(held, list) and isinstance(value, list) and len(held) == len(value):
        for one, other in zip(held, value, strict=True):
            if one != other:
                return _difference(one, other)
    return held, value
