"""Runs checks one after the other: all of them, whatever fails, except those that depend on what has failed."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep.data import nest
from everstep.errors import Problem, TrainingError, UsageError
from everstep.projects.components.base_classes import GenericModelBuilderBase
from everstep.projects.components.building import BASES, Components
from everstep.projects.components.data_splits import SplitName
from everstep.projects.components.error_context import error_context
from everstep.projects.components.run_folder import OpenedRun

TRAINED: tuple[SplitName, ...] = ("training", "validation")
"""The splits whose samples have weights, and that a model sees while it is trained."""

Status = Literal["ok", "FAIL", "warn", "skip"]


@dataclasses.dataclass(frozen=True)
class CheckOutcome:
    """The result of a check, one line.

    Attributes:
      status: "ok", "FAIL", "warn" for what is probably not intended, "skip" for what was not checked.
      component: The component that was checked, or `config`.
      check: The name of the check.
      text: The finding.
    """

    status: Status
    component: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.status:<4} {self.component}: {self.text}"


class Warn(Exception):
    """The finding is probably not intended; a person should look at it."""


class Skip(Exception):
    """There is nothing to check; the text is the reason."""


@dataclasses.dataclass
class SplitSamples:
    """The samples of a split as the loader returned them.

    Attributes:
      count: How many it announced.
      digests: A number for the content of each sample's x, in order; equal for equal ones.
      ids: The ids of test samples, if they have some.
      weights: The sample weights, if they are numbers.
    """

    count: int
    digests: np.ndarray
    ids: list[str] | None
    weights: np.ndarray | None


class Subject:
    """The run that is checked, as a context: its classes can be imported, and `scratch` can be written to.

    Args:
      run_name: The run.
      root: The project.
      data_dir: The folder of the data, in place of the one in the config file.
      max_samples: How many samples of each split are read; None for all.

    Attributes:
      built: The components that could be built, by name.
      samples: The loader's samples, by split.
      label_ranges: The smallest and the largest label of each part of y, by split.
      batches: A first batch `(x, y, weights)` as training and validation get it, by split.
      model: A built model.
      y_pred: Its outputs for the first validation batch.
      metric_names: The metrics of an epoch.
      of_one_batch: Those of them that a custom `test_step` returns for the last batch only.
      labels: The labels of all batches, by split; empty where a label is more than one number.
      losses: The losses of the steps that were tried.
      scratch: A temporary folder.
    """

    def __init__(self, run_name: str, root: Path, data_dir: Any, max_samples: int | None = None) -> None:
        self.run_name, self.root, self.data_dir, self.max_samples = run_name, root, data_dir, max_samples
        self._opened: OpenedRun | None = None
        self.built: dict[str, Any] = {}
        self.samples: dict[SplitName, SplitSamples] = {}
        self.label_ranges: dict[SplitName, list[tuple[float, float]]] = {}
        self.batches: dict[SplitName, tuple[Any, Any, Any]] = {}
        self.model: Any = None
        self.y_pred: Any = None
        self.metric_names: list[str] = []
        self.of_one_batch: set[str] = set()
        self.labels: dict[SplitName, list[np.ndarray]] = {}
        self.losses: list[float] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Subject":
        self.scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-check-")))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def open(self, opened: OpenedRun) -> None:
        """Activates the project of the run."""
        self._opened = opened
        self._stack.enter_context(opened.project.active())

    @property
    def opened(self) -> OpenedRun:
        """The run with its configuration.

        Raises:
          UsageError: It could not be read.
        """
        if self._opened is None:
            raise UsageError("the configuration could not be read")
        return self._opened

    @property
    def source(self) -> Path:
        """The folder of the project's code."""
        return self.root if self._opened is None else self._opened.project.source

    @property
    def components(self) -> Components:
        """The components that could be built; the others are None."""
        built: dict[str, Any] = {name: self.built.get(name) for name in BASES}
        return Components(config=self.opened.config, project=self.opened.project, **built)

    @property
    def is_generic(self) -> bool:
        """Whether the model is an estimator, not a Keras model."""
        return isinstance(self.built.get("model_builder"), GenericModelBuilderBase)

    def require_keras(self) -> None:
        """Skips a check of Keras models where the model is an estimator."""
        if self.is_generic:
            raise Skip

    def few(self, name: SplitName, size: int = 8) -> tuple[Any, Any, Any]:
        """Returns the first samples of a split's first batch."""
        x, y, weight = (nest.map_leaves(lambda leaf: leaf[:size], part) for part in self.batches[name])
        return x, y, weight


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
      component: The component that it checks, or `config`.
      name: The name of the check.
      function: Returns what is fine, in words; raises `UsageError`, `Warn` or `Skip` otherwise.
      needs: The names of checks that it depends on.
    """

    component: str
    name: str
    function: Callable[[Subject], str]
    needs: tuple[str, ...] = ()


def run_checks(subject: Subject, checks: Sequence[Check]) -> Iterator[CheckOutcome]:
    """Yields the outcome of each check as soon as it is known; several lines where it has several findings."""
    failed: set[str] = set()
    for check in checks:
        missing = [need for need in check.needs if need in failed]
        if missing:
            found = [
                CheckOutcome("skip", check.component, check.name, f"{check.name}: depends on {', '.join(missing)}")
            ]
        else:
            found = list(_outcomes(check, subject))
        if missing or any(outcome.status == "FAIL" for outcome in found):
            failed.add(check.name)
        yield from found


def _outcomes(check: Check, subject: Subject) -> Iterator[CheckOutcome]:
    status: Status = "ok"
    try:
        with error_context(f"the check {check.name!r}", subject.source):
            lines = [check.function(subject)]
    except (UsageError, TrainingError) as error:
        if isinstance(error.__cause__, Warn | Skip):
            status = "warn" if isinstance(error.__cause__, Warn) else "skip"
            lines = str(error.__cause__).splitlines()
        else:
            status = "FAIL"
            lines = [str(_named(check, subject, problem)) for problem in error.problems]
    for line in lines:
        yield CheckOutcome(status, check.component, check.name, " ".join(line.split()))


def _named(check: Check, subject: Subject, problem: Problem) -> Problem:
    """Returns a problem that names the component's class and file."""
    if subject._opened is None or f"{check.component}_class" not in subject.opened.config:
        return problem
    return subject.components.named(check.component, problem)
