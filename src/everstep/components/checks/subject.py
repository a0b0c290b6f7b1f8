"""The project that is looked at, and what the checks have found out about it so far."""

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from everstep.components.building import BASES, Components
from everstep.components.flows import Split
from everstep.components.model_builder import GenericModelBuilderBase
from everstep.components.opening import OpenedRun
from everstep.data import nest
from everstep.errors import UsageError

TRAINED: tuple[Split, ...] = ("training", "validation")
"""The splits whose samples carry weights, and that a model sees while it is trained."""


@dataclasses.dataclass
class Samples:
    """What a loader gave for a split.

    Attributes:
      count: How many it announced.
      digests: A number for the content of each sample's x, in order; equal for equal ones.
      ids: Ids, of test data that carry some.
      weights: Sample weights, as far as they are numbers.
    """

    count: int
    digests: np.ndarray
    ids: list[str] | None
    weights: np.ndarray | None


class Subject:
    """One run of a project, in a block: its classes can be imported, and there is a folder to write to.

    Args:
      run_name: The run.
      root: The project.
      data_dir: Where the data is, in place of what the config file says.
      max_samples: How many samples of each split are read; None for all.

    Attributes:
      built: The components that could be built, by name.
      samples: What the loader gave, by split.
      label_ranges: The smallest and the largest label of each part of y, by split.
      batches: A first batch `(x, y, weights)` as training and validation get it, by split.
      model: A model that has answered a batch.
      y_pred: Its answers to the first validation batch.
      names: The metrics that an epoch will have.
      of_one_batch: Those of them that a `test_step` of the model's own tells of the last batch alone.
      labels: Labels of all batches, by split; empty where a label is more than one number.
      losses: The losses of the steps that were tried.
      scratch: A folder that goes with the block.
    """

    def __init__(self, run_name: str, root: Path, data_dir: Any, max_samples: int | None = None) -> None:
        self.run_name, self.root, self.data_dir, self.max_samples = run_name, root, data_dir, max_samples
        self._opened: OpenedRun | None = None
        self.built: dict[str, Any] = {}
        self.samples: dict[Split, Samples] = {}
        self.label_ranges: dict[Split, list[tuple[float, float]]] = {}
        self.batches: dict[Split, tuple[Any, Any, Any]] = {}
        self.model: Any = None
        self.y_pred: Any = None
        self.names: list[str] = []
        self.of_one_batch: set[str] = set()
        self.labels: dict[Split, list[np.ndarray]] = {}
        self.losses: list[float] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Subject":
        self.scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="everstep-check-")))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

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

    def open(self, opened: OpenedRun) -> None:
        """Makes the project's classes known."""
        self._opened = opened
        self._stack.enter_context(opened.project.active())

    @property
    def components(self) -> Components:
        """What could be built; the rest is None."""
        built: dict[str, Any] = {name: self.built.get(name) for name in BASES}
        return Components(config=self.opened.config, project=self.opened.project, **built)

    @property
    def is_generic(self) -> bool:
        """Whether it is an estimator that is trained, and no Keras model."""
        return isinstance(self.built.get("model_builder"), GenericModelBuilderBase)

    def named(self, component: str, line: str) -> str:
        """Returns a finding with the component's key, class and file, where it does not have the file already."""
        if self._opened is None or self._opened.config.origin in line:
            return line
        config, key = self._opened.config, f"{component}_class"
        if key not in config:
            return f"{line} (from {config.origin})"
        return f"{line} ({key}: {config[key]}, from {config.place(key)})"

    def few(self, split: Split, size: int = 8) -> tuple[Any, Any, Any]:
        """Returns the first samples of a split's first batch."""
        x, y, weight = self.batches[split]
        x, y, weight = (nest.map_leaves(lambda leaf: leaf[:size], part) for part in (x, y, weight))
        return x, y, weight
