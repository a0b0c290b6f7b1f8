"""A trained model on data with labels: the batches as the model takes them, and its evaluation sample by sample."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data import IterableStream, Stream
from everstep.errors import UsageError
from everstep.evaluation import evaluate_samples
from everstep.task import Task
from everstep.trained.labelled import LabelledData
from everstep.trained.models import KerasPredictor
from everstep.trained.recorded import RecordedData
from everstep.types import Logs


@dataclasses.dataclass(frozen=True)
class LabelledBatches:
    """Batches `(x, y)` as the model takes them, with the names of classes and samples where the data has any.

    Attributes:
      predictor: The model.
      data: The data, from a file or of the run's record.
      size: How many samples a batch has.
      ids: The names of the samples that have been read.
    """

    predictor: KerasPredictor
    data: LabelledData | RecordedData
    size: int
    ids: list[str] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        one_hot = _takes_one_hot(self.predictor.model)
        self.ids.clear()
        for ids, arrays, labels in self.data.batches(self.size):
            self.ids.extend(map(str, ids))
            is_number = labels.ndim == 1 and labels.dtype.kind in "iu"
            outputs = output_size(self.predictor.model)
            yield self.predictor.nested(arrays), np.eye(outputs)[labels] if one_hot and is_number else labels

    @property
    def class_names(self) -> list[str]:
        """The names of the classes."""
        return self.data.class_names

    @property
    def file_paths(self) -> list[str] | None:
        """The files of the samples, as Keras's datasets of images list them; None where they are in one file."""
        return getattr(self.data.source, "names", None)

    def stream(self) -> Stream:
        """Returns them as a stream, from the start."""
        return _NamedSamples(self)


class _NamedSamples(IterableStream):
    """Batches whose samples are called by their files."""

    def __init__(self, batches: LabelledBatches) -> None:
        super().__init__(batches)
        self._names = batches.file_paths

    def sample_ids(self) -> list[str] | None:
        """Returns the files; None where they are in one file."""
        return self._names


def write_samples(
    batches: LabelledBatches, directory: storage.PathLike | None, split: str, most: int | None = None
) -> Logs:
    """Writes a row for each sample; returns the means of what is measured.

    Args:
      batches: The data.
      directory: The folder for the files; None to keep none.
      split: The name of the data.
      most: How many samples; None for all.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        place = folder if directory is None else directory
        model = batches.predictor.model
        stream = batches.stream()
        return dict(evaluate_samples(_Labelled(), model, stream, place, split, most=most, ids=batches.ids).means)


class _Labelled(Task):
    """Says that batches are inputs and labels."""

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """The data is passed beside the task."""
        raise NotImplementedError


def output_size(model: keras.Model) -> int:
    """Returns how many numbers a model predicts for a sample: of a classifier, one for each class.

    Raises:
      UsageError: It has several outputs: which labels belong to which is in no file.
    """
    if len(model.outputs) != 1:
        raise UsageError(
            f"the model has {len(model.outputs)} outputs, and labels in a file are those of one",
            key="RUN",
            remedy="evaluate it in Python, with model.evaluate",
        )
    return int(model.outputs[0].shape[-1] or 1) if len(model.outputs[0].shape) > 1 else 1


def _takes_one_hot(model: keras.Model) -> bool:
    loss = getattr(model, "loss", None)
    name = str(loss if isinstance(loss, str) else getattr(loss, "name", "")).lower()
    return name.startswith("categorical")


def split_name(path: str) -> str:
    """Returns what an evaluation on a file or folder is called: its name, `test` for `data/test.npz`."""
    stem = Path(path.rstrip("/")).name.partition(".")[0]
    name = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in stem).lstrip("-")
    return name or "data"
