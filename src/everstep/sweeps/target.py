"""What is swept, and how one trial of it starts: an experiment or a function. Other modules register further kinds.

A trial is the ordinary command in a process of its own, in a run directory of its own. The same command again resumes
it, which is all that a worker has to know.

    [project.entry-points."everstep.sweep_targets"]
    mine = "my_package.sweep_target"        # calls `register_target`
"""

import abc
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from everstep.entry_points import load_modules, missing_companions
from everstep.errors import UsageError
from everstep.run import read
from everstep.sweeps.function import RESULT
from everstep.sweeps.space import Space, Values

ENTRY_POINTS = "everstep.sweep_targets"
"""The group of entry points; each names a module that registers kinds of targets."""

Check = Callable[[Values], None]
"""Raises UsageError if the configuration does not take these values."""


@dataclasses.dataclass(frozen=True)
class TargetRequest:
    """What a command line asks to be swept.

    Attributes:
      name: The name on the command line; None if the file of the space may say it.
      space: The keys that vary.
      fixed: Values that are the same in all trials, as words: `key=value`.
      root: The folder of the project, by default the working directory.
      backend: The Keras backend of the trials; None for the usual one.
      data_dir: The folder of the data; None for that of the configuration.
    """

    name: str | None
    space: Space
    fixed: Sequence[str]
    root: Path
    backend: str | None = None
    data_dir: str | None = None

    @property
    def backend_words(self) -> tuple[str, ...]:
        """The backend, as words of a command."""
        return ("--backend", self.backend) if self.backend else ()


@dataclasses.dataclass(frozen=True)
class SweepChoice:
    """What is swept, and how it is checked.

    Attributes:
      target: The target, without its fixed values.
      space: The space, under the names of the target.
      fixed: Values that are the same in all trials, as words.
      check: Raises UsageError if the configuration does not take values.
      metrics: The metrics to optimise, if none is named.
      modes: Their modes.
    """

    target: "Target"
    space: Space
    fixed: Sequence[str]
    check: Check
    metrics: Sequence[str]
    modes: Sequence[str] = ("min",)


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """What is swept.

    Attributes:
      name: Its name among those of its kind.
      words: Options and fixed values of the command.
      root: The working directory of trials.
    """

    name: str
    words: tuple[str, ...] = ()
    root: str = ""

    kind: ClassVar[str]
    """What it is, as `sweep.json` calls it."""
    metric: ClassVar[str] = "validation_loss"
    """The metric that is optimised where none is named; empty: the first of `live.USUAL` that a trial logs."""
    cannot_train_longer: ClassVar[str] = ""
    """Why the best trials cannot be trained longer; empty if they can."""

    @classmethod
    def choose(cls, request: TargetRequest) -> SweepChoice | None:
        """Returns what a request means as a target of this kind; None if it names none. The command line calls it.

        Raises:
          UsageError: It names one, which cannot be swept like this.
        """
        return None

    @classmethod
    def names(cls, root: Path) -> list[str]:
        """Returns the names that there are in a project, for the error where none is meant."""
        return []

    @abc.abstractmethod
    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command of a trial.

        Args:
          run_dir: The trial's run directory.
          space: The space, whose fixed values are set as well.
          values: The trial's values.
          longer: Values that win over all others, to train it longer.
        """

    def run_dir(self, directory: Path, number: int) -> Path:
        """Returns the run directory of a trial of the sweep in `directory`."""
        return directory / "trials" / str(number)

    def prepare(self, directory: Path, run_dir: Path, number: int, space: Space, values: Values) -> None:
        """Creates what the command of a trial needs."""
        run_dir.parent.mkdir(parents=True, exist_ok=True)

    def variables(self, run_dir: Path) -> dict[str, str]:
        """Returns the variables that the environment of a trial has beside those of the worker."""
        return {}

    def without_result(self, run_dir: Path) -> str:
        """Returns why a trial that ended well has no numbers to compare, where this kind knows it; else empty."""
        return ""

    def refuses_all(self, error: str) -> bool:
        """Returns whether the error of one trial is that of every other one, whatever its values are."""
        return False

    def is_complete(self, run_dir: Path) -> bool:
        """Returns whether a trial has nothing left to do: its process ended before its result was stored."""
        with contextlib.suppress(UsageError, KeyError, TypeError):
            return self.is_finished(read(run_dir))
        return False

    def is_finished(self, record: Mapping[str, Any]) -> bool:
        """Returns whether the record of a trial's run is that of a complete one."""
        return bool(record["status"] == "finished")

    @property
    def home(self) -> Path:
        """The folder in whose `runs/` the sweep is, unless its directory is named."""
        return Path()

    def as_dict(self) -> dict[str, Any]:
        """Returns it in plain values, for `sweep.json`."""
        return {"kind": self.kind, "name": self.name, "words": list(self.words), "root": self.root}


_kinds: dict[str, type[Target]] = {}


def register_target(cls: type[Target]) -> type[Target]:
    """Registers a kind of targets; returns it, to be used as a decorator."""
    _kinds[cls.kind] = cls
    return cls


def target_kinds() -> list[type[Target]]:
    """Returns all kinds, also those that other packages register, in this order."""
    load_modules(ENTRY_POINTS, "targets of sweeps")
    return list(_kinds.values())


def target_from_dict(tree: Mapping[str, Any]) -> Target:
    """Returns the target that `as_dict` was called of.

    Raises:
      UsageError: Nothing registers its kind.
    """
    kind = tree["kind"]
    if kind not in _kinds:
        target_kinds()
    if kind not in _kinds:
        missing = ", ".join(sorted(set(missing_companions(ENTRY_POINTS).values())))
        remedy = f"install {missing}, which this installation is without" if missing else ""
        raise UsageError("nothing knows how to sweep it", key="target", received=kind, remedy=remedy)
    return _kinds[kind](tree["name"], tuple(tree["words"]), tree["root"])


@register_target
class ExperimentTarget(Target):
    """A registered experiment."""

    kind = "experiment"

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command `everstep train`."""
        overrides = [*space.words(values), *longer]
        train = [sys.executable, "-m", "everstep", "train", self.name]
        return [*train, *self.words, "--model-dir", str(run_dir), *overrides]


@register_target
class FunctionTarget(Target):
    """A function, by the name `module:function`."""

    kind = "function"
    metric = "value"

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command that calls it once."""
        overrides = [*space.words(values), *longer]
        return [sys.executable, "-m", "everstep.sweeps.function", self.name, str(run_dir), *overrides]

    def is_complete(self, run_dir: Path) -> bool:
        """Returns whether it has returned."""
        return (run_dir / RESULT).is_file()


def check_space(space: Space, check: Check) -> None:
    """Tries every value of every key on the configuration, before the first trial.

    With constraints, a combination that violates one is not tried.

    Raises:
      UsageError: The first key or value that the configuration refuses, with where it is written.
    """
    origins = {one.key: one.origin for one in space.dimensions}
    for dimension, values in space.samples():
        if space.broken(values) is not None:
            continue
        try:
            check(values)
        except UsageError as error:
            problem = next((one for one in error.problems if one.key == dimension.key), error.problems[0])
            origin = origins.get(problem.key, problem.origin)
            raise UsageError(dataclasses.replace(problem, origin=origin)) from None


def experiment_check(space: Space, fixed: Sequence[str], **request: Any) -> Check:
    """Returns the check of a registered experiment, which resolves the configuration as the command of a trial does.

    Args:
      space: The keys that vary.
      fixed: Values that are the same in all trials, as words.
      **request: Further fields of `ExperimentRequest`: its name, its files.
    """
    from everstep.cli import options, resolve

    def check(values: Values) -> None:
        resolve(options.ExperimentRequest(**request, overrides=[*fixed, *space.words(values)]))

    return check
