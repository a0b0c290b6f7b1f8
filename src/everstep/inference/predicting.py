"""The way through: a model, data in batches, rows in a file."""

import contextlib
import dataclasses
from typing import Any, Protocol

import numpy as np

from everstep.errors import UsageError
from everstep.inference.answers import Answers, table
from everstep.inference.finding import Found
from everstep.inference.inputs import EVERYTHING, Choice, open_input
from everstep.inference.keras_model import KerasPredictor, load_keras
from everstep.inference.progress import Progress
from everstep.inference.saved_model import SavedModelPredictor
from everstep.inference.specs import Spec
from everstep.inference.weights import give_checkpoint
from everstep.inference.writing import check_output, open_output

__all__ = ["Predictor", "Wanted", "predict", "predictor_of"]


class Predictor(Protocol):
    """A model that can be asked.

    Attributes:
      specs: What it takes.
    """

    specs: list[Spec]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name, for arrays in the order of `specs`."""

    def activation(self) -> str:
        """Returns what the last layer applies: `softmax`, `sigmoid`; empty if nobody knows."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How to predict.

    Attributes:
      batch_size: Samples at a time.
      kind: `classification` or `regression`; None: as the model and the run tell.
      probabilities: Whether to give the probability of every class.
      choice: What of the data to use.
    """

    batch_size: int = 256
    kind: str | None = None
    probabilities: bool = False
    choice: Choice = EVERYTHING


AS_IT_LOOKS = Wanted()
"""As model, run and data tell."""


def predictor_of(found: Found, checkpoint: str | int | None = None) -> Predictor:
    """Returns the model that was found, with the weights of a checkpoint if that is asked for.

    Args:
      found: Where the model is.
      checkpoint: What `--checkpoint` takes; by default the weights that were exported.

    Raises:
      UsageError: It cannot be loaded safely, or there is no such checkpoint.
    """
    if found.model is None:
        raise UsageError(f"{str(found.directory)!r} has no exported model: train it to its end, or without --no-export")
    if found.model.is_dir():
        if checkpoint is not None:
            raise UsageError(
                "--checkpoint: a SavedModel has one set of weights; a run with export/model.keras has more"
            )
        return SavedModelPredictor(found.model)
    model = load_keras(found.model)
    if checkpoint is not None:
        give_checkpoint(model, found.directory, checkpoint)
    return KerasPredictor(model)


def predict(predictor: Predictor, data: str, output: str, wanted: Wanted = AS_IT_LOOKS, record: Any = None) -> int:
    """Writes what a model says of data; returns how many samples there were.

        found = find("runs/mnist-local-5f2c7a90b1")
        predict(predictor_of(found), "new.npz", "predictions.csv", record=found.record)

    Args:
      predictor: The model.
      data: The data: see `open_input`.
      output: A `.csv` or `.parquet` file that is not there yet; it takes its name when the last row is in.
      wanted: How to predict.
      record: The run's record, which tells a classifier by its metrics.

    Raises:
      UsageError: The data does not fit the model, or cannot be read, or the output is there; nothing is written.
      TrainingError: The disk does not take the output.
    """
    if wanted.batch_size < 1:
        raise UsageError(f"--batch-size: received {wanted.batch_size}, must be at least 1")
    place = check_output(output)
    source = open_input(data, predictor.specs, wanted.choice)
    answers = Answers(wanted.kind, predictor.activation(), record, wanted.probabilities)
    progress = Progress(source.count)
    with contextlib.closing(progress), open_output(place) as write:
        for ids, arrays in source.batches(wanted.batch_size):
            write(table(ids, answers.columns(predictor.predict(arrays))))
            progress.add(len(ids))
        if not progress.rows:
            raise UsageError(f"--input: {data!r} holds no sample: nothing to predict")
    return progress.rows
