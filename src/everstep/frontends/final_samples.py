"""The evaluation sample by sample at the end of a run, of the model that ships."""

from collections.abc import Sequence

import keras

from everstep.data import Stream
from everstep.evaluation import evaluate_samples
from everstep.export import evaluated_weights, unchanged
from everstep.loop import random_state
from everstep.run import Run
from everstep.task import CompiledTask


def write_final_samples(
    model: keras.Model, batches: Stream, run: Run, split: str, ids: Sequence[str] | None = None
) -> None:
    """Evaluates with the exported weights, and writes `reports/`; nothing is drawn, and nothing in the model changes.

    Args:
      model: The trained model.
      batches: The data from its start.
      run: The run; its record has the names of the classes.
      split: The name of the data.
      ids: The names of the samples; None for those that the data has.

    Raises:
      UsageError: The outputs are neither classes nor numbers.
    """
    classes = run.record.get("classes")
    with random_state.untouched(), unchanged(_states(model)), evaluated_weights(model.optimizer):
        evaluate_samples(
            CompiledTask(model), model, batches, run.directory / "reports", split, classes=classes, ids=ids
        )


def _states(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables that a call of the model changes: states of recurrent layers, seeds."""
    stateful = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    states = [state for layer in stateful for state in keras.tree.flatten(getattr(layer, "states", None) or [])]
    return [*states, *(variable for variable in model.variables if variable.name == "seed_generator_state")]
