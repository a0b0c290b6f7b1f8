"""`predict`: runs a model over data in batches, and writes a row for each sample."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import numpy as np

from everstep.errors import UsageError
from everstep.export.predict.answers import Answers, check_output, open_output
from everstep.export.predict.finding import Found
from everstep.export.predict.inputs import EVERYTHING, Choice, Spec, open_input
from everstep.export.predict.models import KerasPredictor, SavedModelPredictor, give_checkpoint, load_keras

__all__ = ["Predictor", "Progress", "Wanted", "predict", "predictor_of"]

_LOG_SECONDS = 5.0
_REDRAW_SECONDS = 0.2


class Predictor(Protocol):
    """A model that predicts.

    Attributes:
      specs: What it takes.
    """

    specs: list[Spec]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name, for arrays in the order of `specs`."""

    def activation(self) -> str:
        """Returns the last layer's activation, `softmax` or `sigmoid`; empty if it is unknown."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How to predict.

    Attributes:
      batch_size: Samples at a time.
      kind: `classification` or `regression`; None to infer it from the model and the run.
      probabilities: Whether to give the probability of every class.
      choice: What of the data to use.
    """

    batch_size: int = 256
    kind: str | None = None
    probabilities: bool = False
    choice: Choice = EVERYTHING


DEFAULTS = Wanted()
"""Everything inferred from the model, the run and the data."""


def predictor_of(found: Found, checkpoint: str | int | None = None) -> Predictor:
    """Returns the model that was found, with the weights of a checkpoint if one is given.

    Args:
      found: Where the model is.
      checkpoint: What `--checkpoint` takes; by default the weights that were exported.

    Raises:
      UsageError: It cannot be loaded safely, or there is no such checkpoint.
    """
    if found.model is None:
        raise UsageError(
            "has no exported model",
            key="RUN",
            received=str(found.directory),
            remedy="finish its training, without --no-export",
        )
    if found.model.is_dir():
        if checkpoint is not None:
            raise UsageError(
                "a SavedModel has one set of weights",
                key="--checkpoint",
                received=checkpoint,
                remedy="use a run with export/model.keras",
            )
        return SavedModelPredictor(found.model)
    model = load_keras(found.model)
    if checkpoint is not None:
        give_checkpoint(model, found.directory, checkpoint)
    return KerasPredictor(model)


def predict(predictor: Predictor, data: str, output: str, wanted: Wanted = DEFAULTS, record: Any = None) -> int:
    """Writes the predictions of a model; returns the number of samples.

        found = find("runs/mnist-local-5f2c7a90b1")
        predict(predictor_of(found), "new.npz", "predictions.csv", record=found.record)

    Args:
      predictor: The model.
      data: The data: see `open_input`.
      output: A `.csv` or `.parquet` file that does not exist yet; it appears when the last row is written.
      wanted: How to predict.
      record: The run's record; its metrics show whether it is a classifier.

    Raises:
      UsageError: The data does not fit the model, or cannot be read, or the output exists; nothing is written.
      TrainingError: The output cannot be written to disk.
    """
    if wanted.batch_size < 1:
        raise UsageError("must be at least 1", key="--batch-size", received=wanted.batch_size)
    place = check_output(output)
    source = open_input(data, predictor.specs, wanted.choice)
    answers = Answers(wanted.kind, predictor.activation(), record, wanted.probabilities)
    progress = Progress(source.count)
    with contextlib.closing(progress), open_output(place) as write:
        for ids, arrays in source.batches(wanted.batch_size):
            write({"id": list(ids), **answers.columns(predictor.predict(arrays))})
            progress.add(len(ids))
        if not progress.rows:
            raise UsageError("contains no samples", key="--input", received=data)
    return progress.rows


class Progress:
    """Counts rows; on a terminal one line that changes, in a log file a line every five seconds.

    Shorter predictions print nothing. When the output is closed, it keeps counting silently.

    Args:
      total: How many rows there will be, if that is known.
      out: Where to write; standard error by default.
      clock: Seconds.
    """

    def __init__(
        self, total: int | None, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._out: TextIO | None = sys.stderr if out is None else out
        self._live = self._out is not None and self._out.isatty()
        self._every = _REDRAW_SECONDS if self._live else _LOG_SECONDS
        self._began = self._last = clock()
        self._shown = False
        self.rows = 0

    def add(self, rows: int) -> None:
        """Notes that more rows are done."""
        self.rows += rows
        now = self._clock()
        if now - self._last >= self._every:
            self._last, self._shown = now, True
            self._write(f"\r\x1b[K{self._line(now)}" if self._live else f"{self._line(now)}\n")

    def close(self) -> None:
        """Removes the line that changes."""
        if self._live and self._shown:
            self._write("\r\x1b[K")

    def _line(self, now: float) -> str:
        rate = self.rows / max(now - self._began, 1e-9)
        known = f" of {self._total:,} ({100 * self.rows // self._total} %)" if self._total else ""
        return f"predicted {self.rows:,}{known} rows, {rate:,.0f} rows/s"

    def _write(self, text: str) -> None:
        if self._out is not None:
            with contextlib.suppress(OSError, ValueError):
                self._out.write(text)
                self._out.flush()
