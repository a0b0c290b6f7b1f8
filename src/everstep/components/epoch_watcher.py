"""What happens at the end of every epoch: its numbers are tracked, and the best weights so far are kept."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from everstep.actions.best_checkpoint import BestCheckpointExporter
from everstep.components.config_struct import ConfigStruct
from everstep.components.run_folder import RunFolder
from everstep.components.tracking import Tracking
from everstep.config.problem import ConfigError, Problem
from everstep.errors import nearest


class EpochWatcher(keras.callbacks.Callback):
    """A callback, because callbacks see an epoch under Keras's names: loss, val_loss.

    Args:
      config: Its `export` says which epoch is the best.
      folder: The run's folder.
      tracking: Where the numbers go.
    """

    def __init__(self, config: ConfigStruct, folder: RunFolder, tracking: Tracking) -> None:
        super().__init__()
        self._config, self._folder, self._tracking = config, folder, tracking
        comp = "lower" if config.export.mode == "min" else "higher"
        self._best = BestCheckpointExporter(folder.best, config.export.metric, comp)
        self._controller: Any = None
        self._seen = 0

    @property
    def saw_no_number(self) -> bool:
        """Whether there were epochs, and the export metric was a finite number in none of them."""
        return self._seen > 0 and self._best.best_value is None

    def join(self, controller: Any) -> None:
        """Learns whose epochs it sees; refuses an export metric that no epoch will have.

        Raises:
          ConfigError: There is no such metric; lists those there are.
        """
        self._controller = controller
        self._best.set_controller(controller)
        if known := _names(controller.trainer):
            self._require(known)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Shows the run to whoever looks for one in its folder, and on MLflow."""
        self._folder.link()
        self._tracking.start()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Keeps the weights if they are the best, and tracks the numbers."""
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        trainer = self._controller.trainer
        self._seen += 1
        self._require(numbers)
        self._folder.link()
        self._best.maybe_export_checkpoint(trainer, {**numbers, "epoch": epoch}, trainer.global_step)
        self._tracking.epoch(epoch, numbers)

    def get_state(self) -> dict[str, Any]:
        """Returns what a run that goes on has to know."""
        return self._best.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._best.set_state(state)

    def _require(self, known: Iterable[str]) -> None:
        """Refuses an export metric that is not among those of an epoch."""
        names, metric = list(known), self._config.export.metric
        if metric not in names:
            text = f"there is no metric {metric!r}; {nearest(metric, names)} (an epoch has: {', '.join(names)})"
            raise ConfigError([Problem("export.metric", text, self._config.place("export.metric"))])


def _names(trainer: Any) -> list[str]:
    """Returns the names that the logs of an epoch will have; none where only an epoch can say."""
    if any(trainer.task.window(kind) != "mean" for kind in ("train", "validation")):
        return []  # steps of the model's own
    train, validation = (list(trainer.engine.read(kind)) for kind in ("train", "validation"))
    return [*train, *(f"val_{name}" for name in validation)]
