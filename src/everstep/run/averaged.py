"""What was chosen of a run's checkpoints, as one of them."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.checkpoint.averaging import write_average
from everstep.run.checkpoint_selection import Chosen
from everstep.task.optim.ema import averaged_keys


@contextlib.contextmanager
def as_checkpoint(chosen: Chosen) -> Iterator[Path]:
    """Yields one checkpoint: the one that was chosen, or the average of several, which is gone after use.

    The average has the model's variables and what the task keeps beside it; of a run that averages its weights on its
    way, those averages. Statistics of batch normalization are averaged as weights are.

    Raises:
      UsageError: They cannot be averaged.
      TrainingError: One is damaged.
    """
    if len(chosen.paths) == 1:
        yield chosen.paths[0]
        return
    with tempfile.TemporaryDirectory(prefix="everstep-average-", ignore_cleanup_errors=True) as folder:
        target = Path(folder, str(chosen.steps[-1]))
        write_average(chosen.paths, target, lasting)
        yield target


def lasting(keys: Sequence[str]) -> dict[str, str]:
    """Returns the keys that an evaluation needs, each with where its value is: averages are kept by the optimizer."""
    means = {weight: mean for mean, weight in averaged_keys(keys).items()}
    return {key: means.get(key, key) for key in keys if key.startswith(("model/", "task."))}
