"""Selected checkpoints as one: a single one as it is, several as their average, written to a temporary directory.

`run/checkpoint_selection.py` selects them; `checkpoint/averaging.py` computes the average of their arrays. Moving
averages of the weights, which an optimizer keeps during training, are another thing: `task/optim/ema.py`.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.checkpoint import write_average
from everstep.engine import EVALUATED
from everstep.run.checkpoint_selection import Chosen
from everstep.task.optim import averaged_keys


@contextlib.contextmanager
def as_checkpoint(chosen: Chosen) -> Iterator[Path]:
    """Yields one checkpoint: the selected one, or the average of several, which is removed after the block.

    The average has the model's variables and those of the task; if the optimizer averages weights, the averages are
    used. Statistics of batch normalization are averaged like weights.

    Raises:
      UsageError: They cannot be averaged.
      TrainingError: One is damaged.
    """
    if len(chosen.paths) == 1:
        yield chosen.paths[0]
        return
    with tempfile.TemporaryDirectory(prefix="everstep-average-", ignore_cleanup_errors=True) as folder:
        target = Path(folder, str(chosen.steps[-1]))
        write_average(chosen.paths, target, evaluated_keys)
        yield target


def evaluated_keys(keys: Sequence[str]) -> dict[str, str]:
    """Returns the keys that an evaluation needs, each with the key that is read: of its moving average, if any."""
    means = {weight: mean for mean, weight in averaged_keys(keys).items()}
    return {key: means.get(key, key) for key in keys if key.startswith(EVALUATED)}
