"""The end of a flow: the model is measured on the test data, saved, drawn and logged."""

import contextlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data import nest
from everstep.export.keras_file import export_keras
from everstep.flow.context import FlowContext
from everstep.flow.drawing import draw
from everstep.flow.splits import Splits
from everstep.optim.ema import find_average
from everstep.run.record import Run

logger = logging.getLogger(__name__)


def finish(task: Any, context: FlowContext, splits: Splits, serving: keras.Model, run: Run) -> dict[str, float]:
    """Evaluates, saves and logs what was trained; returns the final metrics.

    The model is that of the last epoch, with its averaged weights where the optimizer keeps such.

    Args:
      task: The task.
      context: What is around it.
      splits: Its data.
      serving: The model to save, which shares its layers with the task's.
      run: Its record, which the run writes when it ends: nobody else may write it before.
    """
    model, directory = task.model, context.directory
    with averaged(model):
        metrics = _tested(model, splits.test, task.params.batch_size)
        _save(serving, _sample(serving, splits.train if serving is model else None), context)
    files = [directory / "model.keras", *_draw(task, context)]
    tracking = context.begin(run.id, model.name)
    tracking.start(model.name)
    tracking.log(max(task.params.epoch - 1, 0), metrics)
    tracking.files(files)
    run.record["metrics"] = {**run.record["metrics"], "test": dict(metrics)}
    run.record["flow"] = {**run.record["flow"], "complete": True}
    return metrics


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Inside the block the model has its averaged weights, where its optimizer keeps an average of them."""
    average = find_average(model.optimizer)
    pairs = [] if average is None else average.pairs()
    held = [keras.ops.convert_to_numpy(variable) for variable, _ in pairs]
    for variable, mean in pairs:
        variable.assign(mean)
    try:
        yield
    finally:
        for (variable, _), value in zip(pairs, held, strict=True):
            variable.assign(value)


def _tested(model: keras.Model, test: Any, batch_size: int) -> dict[str, float]:
    """Returns the metrics on the test data, under the names that they have on MLflow."""
    if test is None:
        logger.warning("there is no test data, so the model is not measured: set test_data in the DataSet")
        return {}
    inputs = {"x": test[0], "y": test[1], "batch_size": batch_size} if isinstance(test, tuple) else {"x": test}
    logs = model.evaluate(**inputs, verbose=0, return_dict=True)
    return {metric_name(name): float(value) for name, value in logs.items()}


def metric_name(name: str) -> str:
    """Returns `test acc` for the accuracy, and `test <name>` for everything else, such as a top-5 accuracy."""
    return "test acc" if name == "accuracy" else f"test {name}"


def _save(model: keras.Model, sample: Any, context: FlowContext) -> None:
    """Writes the model to the run directory, known to load again, and to `data/model` under the task's name."""
    path = context.directory / "model.keras"
    export_keras(model, path, sample)
    published = context.root / "data" / "model" / f"{context.settings.task}.keras"
    _copy(path, published)


def _sample(model: keras.Model, train: Any) -> Any:
    """Returns a few inputs to try the saved model with."""
    if isinstance(train, tuple):
        return nest.map_leaves(lambda leaf: np.asarray(leaf[:8]), train[0])
    made = [_numbers(tensor) for tensor in model.inputs]
    return made[0] if len(made) == 1 else made


def _numbers(tensor: Any) -> np.ndarray:
    """Returns numbers for an input of a model: 0 or 1 for whole ones, because they may be places in a table."""
    shape = [2 if size is None else size for size in tensor.shape]
    random = np.random.default_rng(0)
    drawn = random.integers(0, 2, shape) if "int" in str(tensor.dtype) else random.random(shape)
    return drawn.astype(tensor.dtype)


def _draw(task: Any, context: FlowContext) -> list[Path]:
    """Writes `training.png` to the run directory and to `data/report`; nothing where there is no matplotlib."""
    png = draw(task.history, context.settings.shown_chain)
    if png is None:
        logger.warning("matplotlib is not installed, so there is no training.png: pip install matplotlib")
        return []
    path = context.directory / "training.png"
    storage.write_bytes(path, png)
    _copy(path, context.root / "data" / "report" / f"{context.settings.task}-training.png")
    return [path]


def _copy(path: Path, target: Path) -> None:
    storage.prepare_directory(target.parent)
    with storage.atomic_path(target) as temporary:
        shutil.copyfile(path, temporary)
