"""The default `run` of a flow, from the prepared data on: trained by the loop, tested, saved, drawn and tracked."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from everstep import storage
from everstep.data import ArrayStream, DataConfig, Stream, left_out, make_stream
from everstep.data.images import ImageSource
from everstep.engine import backend
from everstep.errors import KeyNames, UsageError, kind_of, renamed_keys
from everstep.export import evaluated_weights, export_keras, sample_inputs
from everstep.frontends import (
    ClassNames,
    CompiledTaskConfig,
    RunPlan,
    compiled,
    train_compiled,
    write_final_samples,
)
from everstep.loop import Listener
from everstep.projects.flow.drawing import NotebookPlot, draw
from everstep.projects.flow.recording import FlowContext, copy_file
from everstep.projects.flow.settings import FlowSettings
from everstep.run import ChangeRefused, Run, read
from everstep.task import require_compiled
from everstep.types import Logs

logger = logging.getLogger(__name__)

_MOST_SAMPLES = 50_000
"""With more, the test data is not evaluated sample by sample: it takes more than ten seconds."""

NAMES: KeyNames = {
    **compiled.NAMES,
    "trainer.epochs": "epoch",
    "trainer.train_steps": "epoch",
    "task.train_data.global_batch_size": "batch_size",
    "runtime.seed": "seed",
}
"""Keys of the loop, and the parameters that users know them by."""


@dataclasses.dataclass
class FlowConfig(CompiledTaskConfig):
    """A flow in `config.yaml`: a resumed run must have the same."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"epoch", "catalog"})

    flow: str = ""
    """The name of the task's class."""
    epoch: int = 1
    """How many epochs there are in all."""
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The task's other parameters."""
    catalog: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Where the data was; whether it is the same is checked by its fingerprint."""


def train(task: Any) -> Mapping[str, float]:
    """Builds, trains, evaluates, saves and logs; returns the final metrics.

    Args:
      task: A `FlowTask` whose data is prepared.

    Raises:
      UsageError: The request is invalid, or would resume a run that was trained differently.
      TrainingError: The run started and failed.
    """
    context: FlowContext = task._everstep_opened()
    settings, params, who = context.settings, task.params, type(task).__name__
    task.directory = context.directory
    splits = split_data(task.dataset, params, who)
    with contextlib.closing(context):
        task.model = model = _build_model(task, settings)
        context.model_name = model.name
        classes = ClassNames(model, getattr(task.dataset, "class_names", None))
        splits = splits.numbered(classes, f"{who}.dataset")
        classes.require_those_of(context.directory)
        serving = _keras_model(task.build_serving_model(model), f"{who}.build_serving_model()")
        stream = _stream(splits.train, params, training=True)
        validation = None if splits.validation is None else _stream(splits.validation, params, training=False)
        steps = stream.batches_per_epoch
        if not steps:
            raise UsageError("has no known number of batches per epoch", key=f"{who}.dataset.train_data")

        def at_end(run: Run) -> None:
            task.history = {name: list(values) for name, values in model.history.history.items()}
            task.metrics = _finish(task, context, splits, serving, run)
            _write_samples(task, splits.test, run)

        plan = RunPlan(
            context.directory,
            task=_config(settings),
            trainer={"max_to_keep": 2},
            seed=params.seed,
            verbose=context.verbose,
            allow_change=context.allow_change,
            names={**NAMES, "loss": f"{who}.loss", "x": f"{who}.dataset", "y": f"{who}.dataset"},
            experiment=settings.task,
            record={**context.record(), **({"classes": classes.names} if classes.names else {})},
            code_root=context.root,
            listeners=[FlowWatcher(context, model.name)],
            at_end=at_end,
        )
        epochs, callbacks = params.epoch, task.build_callbacks()
        context.check_parameters()
        context.hand_over()
        try:
            train_compiled(model, stream, validation, epochs, steps_per_epoch=steps, callbacks=callbacks, run=plan)
        except ChangeRefused as refused:
            if context.names_directory:
                raise
            raise refused.with_remedy("start a new run with --new (in Python: new=True)") from refused.__cause__
    return task.metrics


class FlowWatcher(Listener):
    """Tracks the attempt on MLflow, epoch by epoch, and draws the curves in a notebook.

    Args:
      context: The flow.
      model_name: The model's name, for where no parameter sets one.
    """

    def __init__(self, context: FlowContext, model_name: str) -> None:
        self._context, self._model_name = context, model_name
        self._plot = NotebookPlot()
        self._curves: dict[str, list[float]] = {}

    def on_ready(self) -> None:
        """Begins to track the attempt."""
        self._context.begin(read(self._context.directory)["id"], self._model_name)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Tracks the numbers of an epoch, and shows the curves in a notebook."""
        numbers = {name: float(value) for name, value in logs.items()}
        if self._context.tracking is not None:
            self._context.tracking.log(epoch, numbers)
        for name, value in numbers.items():
            self._curves.setdefault(name, []).append(value)
        if self._plot.is_shown:
            self._plot.show(draw(self._curves, self._context.settings.task))

    def on_exit(self, error: BaseException | None) -> None:
        """Closes what is tracked where training failed, before the directory may be removed."""
        if error is not None:
            self._context.close()

    def get_state(self) -> dict[str, Any]:
        """Returns the curves."""
        return {"curves": {name: list(values) for name, values in self._curves.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the curves."""
        self._curves = {name: [float(value) for value in values] for name, values in state["curves"].items()}


def _build_model(task: Any, settings: FlowSettings) -> keras.Model:
    """Returns the compiled model; its initial weights depend on the seed alone."""
    with renamed_keys(NAMES):
        backend.prepare(task.params.seed)
    hook = f"{type(task).__name__}.build_model()"
    model = _keras_model(task.build_model(), hook)
    if not model.compiled:
        task.compile_model(model)
    elif settings.has_optimizer_file and not task._everstep_used_optimizer:
        reason = "compiled the model with an optimizer of its own, so config/optimizer.yaml would be ignored"
        raise UsageError(reason, key=hook, remedy="compile with optimizer=self.build_optimizer(), or remove the file")
    require_compiled(model)
    return model


def _keras_model(returned: Any, hook: str) -> keras.Model:
    if not isinstance(returned, keras.Model):
        raise UsageError(f"returned {kind_of(returned)}, expected a keras.Model", key=hook)
    return returned


def _stream(data: Any, params: Any, training: bool) -> Stream:
    config = DataConfig(global_batch_size=params.batch_size, is_training=training, drop_remainder=False)
    stream = make_stream(data, config, training=training, seed=params.seed)
    if isinstance(stream, ArrayStream) and stream is not data:
        shuffle = training and params.shuffle
        return ArrayStream(stream.arrays, params.batch_size, shuffle=shuffle, seed=params.seed, repeat=training)
    return stream


def _config(settings: FlowSettings) -> FlowConfig:
    params = settings.params.as_dict()
    data = DataConfig(global_batch_size=params["batch_size"], drop_remainder=False)
    return FlowConfig(
        flow=settings.task,
        epoch=params.pop("epoch"),
        parameters={key: value for key, value in params.items() if key not in ("seed", "batch_size")},
        catalog=dict(settings.catalog),
        train_data=data,
        validation_data=data,
    )


# -- data --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Splits:
    """Each is `(inputs, labels)`, or data with labels of its own; validation and test may be None."""

    train: Any
    validation: Any
    test: Any

    def numbered(self, classes: ClassNames, key: str) -> "Splits":
        """Returns them with numbers in place of labels of text."""
        return Splits(*(classes.in_data(part, key) for part in (self.train, self.validation, self.test)))


def split_data(dataset: Any, params: Any, who: str) -> Splits:
    """Returns the prepared data in splits.

    Args:
      dataset: A `DataSet`, or anything with its attributes.
      params: The task's parameters; `validation_split` is the share of the training data, its end, to validate with.
      who: The task's name, for messages.

    Raises:
      UsageError: It is not a `DataSet`, or has no data to train on.
    """
    if dataset is None:
        remedy = "set self.dataset = DataSet(train_data=…, …)"
        raise UsageError("left no data", key=f"{who}.preprocessing_train()", remedy=remedy)
    if getattr(dataset, "train_data", None) is None or not hasattr(dataset, "train_label"):
        expected = "a DataSet with train_data, train_label, test_data, test_label"
        raise UsageError(f"is {type(dataset).__name__}, expected {expected}", key=f"{who}.dataset")
    train, validation = _pair(dataset, "train", who), _pair(dataset, "validation", who)
    if validation is None and params.validation_split:
        train, validation = _divided(dataset, params.validation_split, f"{who}.validation_split")
    validation = left_out(train) if validation is None else validation
    ids, label = getattr(dataset, "test_ids", None), getattr(dataset, "test_label", None)
    if ids is not None and label is not None and len(ids) != len(label):
        reason = f"test_label has {len(label)} samples, and test_ids {len(ids)}"
        raise UsageError(reason, key=f"{who}.dataset", remedy="give one name for each sample")
    return Splits(train, validation, _pair(dataset, "test", who))


def _pair(dataset: Any, split: str, who: str) -> Any:
    data, label = (getattr(dataset, f"{split}_{part}", None) for part in ("data", "label"))
    if data is None or label is None:
        return data
    sizes = [
        len(part) if hasattr(part, "__len__") and not isinstance(part, Mapping | tuple) else None
        for part in (data, label)
    ]
    if None not in sizes and sizes[0] != sizes[1]:
        reason = f"{split}_data has {sizes[0]} samples, and {split}_label {sizes[1]}"
        raise UsageError(reason, key=f"{who}.dataset", remedy="give one label for each sample")
    return data, label


def _divided(dataset: Any, share: float, key: str) -> tuple[Any, Any]:
    if not isinstance(dataset.train_data, np.ndarray) or dataset.train_label is None:
        remedy = "set validation_data in the DataSet, or validation_split to 0"
        if isinstance(dataset.train_data, ImageSource):
            remedy = f"set it where the images are named: ImageDataConfig(…, validation_split={share})"
        raise UsageError("but only arrays can be divided", key=key, received=share, remedy=remedy)
    data, label = dataset.train_data, np.asarray(dataset.train_label)
    first = len(data) - int(len(data) * share)
    if not 0 < first < len(data):
        raise UsageError(f"leaves nothing of {len(data)} samples to validate with", key=key, received=share)
    return (data[:first], label[:first]), (data[first:], label[first:])


# -- the end -----------------------------------------------------------------------------------------------------------


def _finish(task: Any, context: FlowContext, splits: Splits, serving: keras.Model, run: Run) -> dict[str, float]:
    """Evaluates, saves and logs the model of the last epoch, with averaged weights if there are any.

    Args:
      task: The task.
      context: The flow.
      splits: Its data.
      serving: The model to save, which shares its layers with the task's.
      run: The record of the run, which is written when the run ends, and not before.
    """
    model, directory, name = task.model, context.directory, context.settings.task
    with evaluated_weights(model.optimizer):
        metrics = {}
        if splits.test is None:
            logger.warning("there is no test data, so the model is not tested: set test_data in the DataSet")
        else:
            tested = _test(model, splits.test, task.params.batch_size)
            metrics = context.names().named({"test": {"model.evaluate": tested}})
        inputs = splits.train[0] if serving is model and isinstance(splits.train, tuple) else None
        export_keras(serving, directory / "model.keras", sample_inputs(serving, inputs))
    copy_file(directory / "model.keras", context.root / "data" / "model" / f"{name}.keras")
    files = [directory / "model.keras"]
    if png := draw(task.history, context.settings.shown_chain):
        files.append(directory / "training.png")
        storage.write_bytes(files[-1], png)
        copy_file(files[-1], context.root / "data" / "report" / f"{name}-training.png")
    else:
        logger.warning("matplotlib is not installed, so there is no training.png: pip install matplotlib")
    tracking = context.begin(run.id, model.name)
    tracking.start()
    context.check_parameters()
    tracking.log(max(task.params.epoch - 1, 0), metrics)
    tracking.files(files)
    run.record["metrics"] = {**run.record["metrics"], "test": dict(metrics)}
    run.record["flow"] = {**run.record["flow"], "complete": True}
    return metrics


def _write_samples(task: Any, test: Any, run: Run) -> None:
    """Evaluates the test data sample by sample; an evaluation that fails does not fail the run."""
    if test is None:
        return
    ids = getattr(task.dataset, "test_ids", None)
    try:
        stream = _stream(test, task.params, training=False)
        if (stream.batches_per_epoch or 0) * task.params.batch_size > _MOST_SAMPLES:
            logger.info("the test data is not evaluated sample by sample: it has more than %d samples", _MOST_SAMPLES)
            return
        write_final_samples(task.model, stream, run, "test", None if ids is None else list(map(str, ids)))
    except UsageError as error:
        logger.info("the test data is not evaluated sample by sample: %s", error)
    except Exception as error:  # the model's own code, and the data, may fail in any way
        logger.warning("the test data is not evaluated sample by sample: %s", error)


def _test(model: keras.Model, test: Any, batch_size: int) -> dict[str, float]:
    """Returns the model's own metrics on the test data, under Keras's names."""
    inputs = {"x": test[0], "y": test[1], "batch_size": batch_size} if isinstance(test, tuple) else {"x": test}
    logs = model.evaluate(**inputs, verbose=0, return_dict=True)
    return {name: float(value) for name, value in logs.items()}
