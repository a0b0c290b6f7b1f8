"""Runs a model over data in batches: `predict` returns its outputs, `write_predictions` writes a row per sample."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TextIO

import keras
import numpy as np

from everstep import storage
from everstep.errors import NOTHING, UsageError, kind_of, renamed_keys
from everstep.notebook import people_stream
from everstep.run import directory_of
from everstep.trained.finding import Found, local_run, opened
from everstep.trained.inputs import InputSource, Spec
from everstep.trained.models import KerasPredictor, SavedModelPredictor, load_keras, load_run_checkpoint
from everstep.trained.outputs import OutputColumns, check_output, open_output
from everstep.trained.raw_inputs import opened_for
from everstep.trained.recorded import RecordedInputs

_ARGUMENTS = {
    "RUN": "run_or_model",
    "--input": "inputs",
    "--checkpoint": "checkpoint",
    "--batch-size": "batch_size",
    "--without": "without",
}
"""The arguments of `predict` by what the command calls them."""

_LOG_SECONDS = 5.0
_REDRAW_SECONDS = 0.2


class Predictor(Protocol):
    """A loaded model that predicts.

    Attributes:
      specs: The model's inputs.
    """

    specs: list[Spec]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """Returns the outputs by name, for arrays in the order of `specs`; the device may still compute them."""

    def activation(self) -> str:
        """Returns the last layer's activation, `softmax` or `sigmoid`; empty if it is unknown."""


def predict(
    run_or_model: storage.PathLike | keras.Model,
    inputs: Any,
    *,
    checkpoint: str | int | None = None,
    batch_size: int = 256,
    without: Sequence[str] = (),
    resize: bool = False,
) -> np.ndarray | dict[str, np.ndarray]:
    """Predicts new data with a trained model, as `everstep predict` does, and returns the model's outputs.

        probabilities = everstep.predict("runs/mnist-local-5f2c7a90b1", images)
        probabilities = everstep.predict("model.keras", "new.csv", without=["label"])

    Data of another shape or type than the model takes is an error before anything is computed. A model file that would
    run code or open files is refused. `everstep predict` also rebuilds the model of a run that exported none; here,
    pass the model itself.

    Args:
      run_or_model: A run directory, its URL, or a run's id; a `.keras` file or a SavedModel; or a Keras model.
      inputs: An array with samples along its first axis; a dict of arrays by the names of the model's inputs; or a
        file or folder: `.npy`, `.npz`, `.csv`, `.parquet`, `.tfrecord`, images.
      checkpoint: Which of the run's weights to load: a step, `best`, `last`, or several steps for their average. By
        default those of its export.
      batch_size: The number of samples per call of the model.
      without: Names of arrays, columns or features that are not inputs, such as a label.
      resize: Whether to resize images of another size.

    Returns:
      The outputs for all samples, in order: an array, or a dict of arrays by name if the model has several outputs.

    Raises:
      UsageError: The model cannot be found or loaded safely, or the data does not fit it.
    """
    with renamed_keys(_ARGUMENTS), _open_predictor(run_or_model, checkpoint) as predictor:
        predictor, source = opened_for(predictor, inputs, without, resize)
        batches = [outputs for _, outputs in _predicted_batches(predictor, source, batch_size, inputs)]
    joined = {name: np.concatenate([outputs[name] for outputs in batches]) for name in batches[0]}
    return joined if len(joined) > 1 else next(iter(joined.values()))


@contextlib.contextmanager
def _open_predictor(run_or_model: Any, checkpoint: str | int | None) -> Iterator[Predictor]:
    if isinstance(run_or_model, keras.Model):
        if checkpoint is not None:
            raise UsageError(
                "a model has its own weights", key="checkpoint", received=checkpoint, remedy="name the run directory"
            )
        yield KerasPredictor(run_or_model)
    elif isinstance(run_or_model, str | os.PathLike):
        name = local_run(directory_of(run_or_model), None if checkpoint is None else str(checkpoint))
        with opened(name) as found:
            yield predictor_of(found, checkpoint)
    else:
        raise UsageError(f"expected a path or a Keras model, not {kind_of(run_or_model)}", key="run_or_model")


def _predicted_batches(
    predictor: Predictor, source: InputSource, batch_size: int, data: Any
) -> Iterator[tuple[Sequence[Any], dict[str, np.ndarray]]]:
    """Yields the ids and the outputs of each batch; the next one is read while the device computes.

    Raises:
      UsageError: The batch size is not positive, or there are no samples.
    """
    if batch_size < 1:
        raise UsageError("must be at least 1", key="--batch-size", received=batch_size)
    running: tuple[Sequence[Any], dict[str, Any]] | None = None
    for ids, arrays in source.batches(batch_size):
        before, running = running, (ids, predictor.predict(arrays))
        if before is not None:
            yield before[0], _on_host(before[1])
    if running is None:
        received = data if isinstance(data, str | os.PathLike) else NOTHING
        raise UsageError("contains no samples", key="--input", received=received)
    yield running[0], _on_host(running[1])


def _on_host(outputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Waits for outputs and returns them as NumPy arrays, without a copy where that is possible."""
    convert = keras.ops.convert_to_numpy if keras.backend.backend() == "torch" else np.asarray
    return {name: convert(value) for name, value in outputs.items()}


def predictor_of(found: Found, checkpoint: str | int | None = None) -> Predictor:
    """Loads the model that was found, with the weights of a checkpoint if one is given.

    Args:
      found: Where the model is.
      checkpoint: The value of `--checkpoint`; None for the weights that were exported.

    Raises:
      UsageError: The model cannot be loaded safely, or there is no such checkpoint.
    """
    if found.model is None:
        raise UsageError(
            "has no exported model",
            key="RUN",
            received=str(found.directory),
            remedy="pass the model itself, with the weights of everstep.export.load_checkpoint",
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
        load_run_checkpoint(model, found.directory, checkpoint)
    return KerasPredictor(model)


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """How to predict and what to write.

    Attributes:
      batch_size: The number of samples per call of the model.
      kind: `classification` or `regression`; None to infer it from the model and the run.
      probabilities: Whether to write the probability of every class.
      without: Names of columns, arrays or features that are not inputs, such as the label.
      resize: Whether to resize images of another size.
    """

    batch_size: int = 256
    kind: str | None = None
    probabilities: bool = False
    without: tuple[str, ...] = ()
    resize: bool = False


DEFAULTS = PredictOptions()
"""Everything is inferred from the model, the run and the data."""


def write_predictions(
    predictor: Predictor, data: Any, output: str, options: PredictOptions = DEFAULTS, record: Any = None
) -> int:
    """Writes a row for each sample; returns the number of samples.

        found = find("runs/mnist-local-5f2c7a90b1")
        write_predictions(predictor_of(found), "new.npz", "predictions.csv", record=found.record)

    Args:
      predictor: The model.
      data: The data: see `open_input`; or that of the run's record.
      output: A `.csv` or `.parquet` file that does not exist yet; it appears when the last row is written.
      options: How to predict and what to write.
      record: The run's record; its metrics show whether the model is a classifier.

    Raises:
      UsageError: The data does not fit the model, or cannot be read, or the output exists; nothing is written.
      TrainingError: The output cannot be written to disk.
    """
    place = check_output(output)
    if isinstance(data, RecordedInputs):
        source: Any = data
    else:
        predictor, source = opened_for(predictor, data, options.without, options.resize)
    table = OutputColumns(options.kind, predictor.activation(), record, options.probabilities)
    progress = PredictProgress(source.count)
    with contextlib.closing(progress), open_output(place) as write:
        for ids, outputs in _predicted_batches(predictor, source, options.batch_size, data):
            write({"id": list(ids), **table.columns(outputs)})
            progress.add(len(ids))
    return progress.rows


class PredictProgress:
    """Reports the number of rows: on a terminal in one changing line, in a log file with a line every five seconds.

    Shorter predictions print nothing. If the stream is closed, counting continues silently.

    Args:
      total: The number of rows to expect; None if it is unknown.
      out: The stream to write to; standard error by default.
      clock: Returns the time in seconds.
    """

    def __init__(
        self, total: int | None, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._out: TextIO | None = people_stream() if out is None else out
        self._live = self._out is not None and self._out.isatty()
        self._every = _REDRAW_SECONDS if self._live else _LOG_SECONDS
        self._began = self._last = clock()
        self._shown = False
        self.rows = 0

    def add(self, rows: int) -> None:
        """Counts rows that are done, and reports them when it is time."""
        self.rows += rows
        now = self._clock()
        if now - self._last < self._every:
            return
        self._last, self._shown = now, True
        rate = self.rows / max(now - self._began, 1e-9)
        known = f" of {self._total:,} ({100 * self.rows // self._total} %)" if self._total else ""
        line = f"predicted {self.rows:,}{known} rows, {rate:,.0f} rows/s"
        self._write(f"\r\x1b[K{line}" if self._live else f"{line}\n")

    def close(self) -> None:
        """Removes the changing line."""
        if self._live and self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._out is not None:
            with contextlib.suppress(OSError, ValueError):
                self._out.write(text)
                self._out.flush()
