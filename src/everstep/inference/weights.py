"""A model gets the weights of a run's checkpoint, or the average of several."""

from pathlib import Path

import keras

from everstep.errors import UsageError
from everstep.export.from_checkpoint import load_checkpoint
from everstep.run.averaged import as_checkpoint
from everstep.run.chosen import FLAG, Chosen, choose


def give_checkpoint(model: keras.Model, directory: Path | None, wanted: str | int = "last") -> Chosen:
    """Gives a model the weights of a run's checkpoint; returns which.

    Args:
      model: The model, built.
      directory: The run directory; None for a model that was named alone.
      wanted: What `--checkpoint` takes: a step, `best`, `last`, several steps for their average.

    Raises:
      UsageError: There is none; lists those there are.
      TrainingError: It is damaged.
    """
    if directory is None:
        raise UsageError(f"{FLAG}: a model alone has no checkpoints: name the run directory")
    chosen = choose(directory, str(wanted))
    with as_checkpoint(chosen) as path:
        load_checkpoint(model, path)
    return chosen
