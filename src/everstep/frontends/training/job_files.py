"""`JobFiles`: the files in `job_dir` that tell people and pipelines how far a job is.

Each is written after the checkpoint that it describes, and never read back. After a kill in between they lag by an
epoch, and the next attempt updates them:

    job_meta.json       how many epochs are done, and their checkpoint: {"last_epoch": 3, "last_checkpoint": "00003"}
    epochs/00003.json   the checkpoint of an epoch: {"epoch": 3, "step": 12, "checkpoint": "checkpoints/12"}
    logs/               TensorBoard by epoch, as Keras's callback writes it, each epoch once over all attempts
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.frontends import TRAINING
from everstep.loop import Listener
from everstep.tracking import EventFile, histogram_value, last_step, scalar_value
from everstep.types import Logs

logger = logging.getLogger(__name__)

JOB_META, EPOCHS = TRAINING.progress


class JobFiles(Listener):
    """Keeps a job's files up to date with its checkpoints.

    Args:
      model: The model that is trained; it has the history of all epochs.
      steps: Steps of an epoch.
    """

    def __init__(self, model: keras.Model, steps: int) -> None:
        self._model, self._steps = model, steps
        self._ends: dict[int, int] = {}  # the step at which an epoch of this attempt ended, by how many were done then
        self._histograms: dict[int, list[Any]] = {}
        self._restored = 0  # epochs of earlier attempts
        self._columns: set[str] = set()
        self._shown = -1  # how many epochs are in the files
        self._log: EpochLog | None = None

    def setup(self, controller: Any) -> None:
        """Finds the run directory on this machine, which may be a copy of one in a store."""
        super().setup(controller)
        self._directory = Path(controller.checkpointer.directory).parent

    def on_ready(self) -> None:
        """Reads how many epochs earlier attempts have done, and updates the files."""
        history = self._model.history
        self._restored, self._columns = len(history.epoch), set(history.history)
        with self._warned():
            self._log = EpochLog(self._directory / "logs")
        self._catch_up()

    def on_call_end(self, step: int) -> None:
        """Updates the files for epochs that are saved by now: checkpoints are written in the background."""
        self._catch_up()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Records the end of an epoch, while the model has its weights; warns if the validation loss is not finite.

        Rows of the history are epochs: each column gets a value per epoch, NaN where an epoch had none.
        """
        done, columns = len(self._model.history.epoch), self._model.history.history
        for name, values in columns.items():
            gap = [math.nan] * (done - len(values))
            values[:] = [*values, *gap] if name in self._columns else [*gap, *values]
        self._columns = set(columns)
        self._ends[done], self._histograms[done] = self.controller.step, _histograms(self._model)
        loss = float(logs.get("val_loss", 0.0))
        if not math.isfinite(loss):  # training continues: the weights are finite
            logger.warning("the validation loss is %s in epoch %d (the first is 0): check valid_ds", loss, epoch)

    def on_exit(self, error: BaseException | None) -> None:
        """Updates the files, and closes them."""
        self._shown = -1
        self._catch_up()
        if self._log is not None:
            self._log.close()

    def _catch_up(self) -> None:
        """Updates the files for the epochs that are saved by now; cheap where nothing is new."""
        if self._shown >= len(self._model.history.epoch):
            return
        with self._warned():
            steps = self.controller.checkpointer.steps()
            newest = max(steps, default=0)
            done = max([self._restored, *(done for done, step in self._ends.items() if step <= newest)])
            if done > self._shown:
                self._write_log(done)
                self._write_epochs(steps, done)
                self._shown = done

    def _write_log(self, done: int) -> None:
        history = self._model.history.history
        for number in range(max(self._shown, 0), done):
            numbers = {name: float(values[number]) for name, values in history.items() if number < len(values)}
            if self._log is not None:
                self._log.write(number, numbers, self._histograms.pop(number + 1, []))

    def _write_epochs(self, steps: list[int], done: int) -> None:
        ends = {step: number for number, step in self._ends.items()}  # one that a callback cut short has its own length
        numbers = {step: ends.get(step, step // self._steps) for step in steps if step}
        whole = {step: number for step, number in numbers.items() if step in ends or step % self._steps == 0}
        names = {f"{number:05d}": step for step, number in whole.items() if number <= done}
        folder = self._directory / EPOCHS
        folder.mkdir(parents=True, exist_ok=True)
        for name, step in names.items():
            content = {"epoch": int(name), "step": step, "checkpoint": f"checkpoints/{step}"}
            if not (folder / f"{name}.json").exists():
                storage.write_json(folder / f"{name}.json", content)
        for path in folder.glob("*.json"):
            if path.stem not in names:
                path.unlink()
        last = f"{done:05d}" if f"{done:05d}" in names else max(names, default="")
        storage.write_json(self._directory / JOB_META, {"last_epoch": done, "last_checkpoint": last})

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Inside the block a full disk is a warning: the checkpoints have everything that a job needs."""
        try:
            yield
        except OSError as error:
            logger.warning(
                "the files of the job in %s are not up to date: %s", self._directory, error.strerror or error
            )


class EpochLog:
    """`logs/train` and `logs/validation`: `epoch_loss` and the other logs, and the weights' histograms, by epoch.

    An epoch is written after its checkpoint, so that no later attempt trains it again, and steps only increase.

    Args:
      directory: `logs`.
    """

    def __init__(self, directory: Path) -> None:
        self._files = {kind: EventFile(directory / kind) for kind in ("train", "validation")}
        self._done = {kind: last_step(directory / kind) for kind in self._files}

    def write(self, epoch: int, numbers: Mapping[str, float], histograms: Sequence[Any]) -> None:
        """Writes an epoch, unless it was written before."""
        validation = {name.removeprefix("val_"): value for name, value in numbers.items() if name.startswith("val_")}
        train = {name: value for name, value in numbers.items() if not name.startswith("val_")}
        for kind, found, others in (("train", train, histograms), ("validation", validation, [])):
            if found and epoch > self._done[kind]:
                values = [scalar_value(f"epoch_{name}", value) for name, value in found.items()]
                self._files[kind].write(epoch, [*values, *others])
                self._files[kind].flush()
                self._done[kind] = epoch

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


def _histograms(model: keras.Model) -> list[Any]:
    """Returns the distribution of each weight of a model, as TensorBoard has it."""
    found = [
        histogram_value(f"{layer.name}/{weight.name}/histogram", keras.ops.convert_to_numpy(weight.value))
        for layer in model._flatten_layers(include_self=False, recursive=True)
        for weight in layer._trainable_variables + layer._non_trainable_variables
    ]
    return [value for value in found if value is not None]
