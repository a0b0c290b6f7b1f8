"""`MultiTask`: several tasks as one, with one model."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from everstep.config import get_task
from everstep.data import ArrayStream, Stream, make_stream, nest
from everstep.errors import UsageError, problems_under
from everstep.task.grad import switch, value_and_grad
from everstep.task.multitask.config import MultiTaskConfig, TaskRoutine
from everstep.task.multitask.streams import (
    CombinedStream,
    InterleavedStream,
    JointStream,
    Layout,
    RoundsStream,
    TaskSampler,
)
from everstep.task.task import Task, explain_missing_labels, weight_argument
from everstep.types import Batch


class MultiTask(Task):
    """Trains tasks in turn or jointly, and evaluates each on its own data.

        config = MultiTaskConfig(task_routines=[
            TaskRoutine(task_name="digit", task_config=DigitConfig()),
            TaskRoutine(task_name="parity", task_config=ParityConfig(), task_weight=0.5),
        ])
        task = everstep.get_task(config)  # a MultiTask, for run_experiment

    The tasks share one model, by default that of the first task. For another one, with one output per task, write a
    subclass with `build_model` (see `everstep.task.multitask.task.task_models`). Names of logs begin with the task:
    `digit/accuracy`, `parity/validation_loss`.

    Args:
      params: A MultiTaskConfig.
      logging_dir: The directory that the run writes to.
      name: A name for logs.
      tasks: The tasks by name; by default they are created from their configurations.
    """

    averages_batches = True  # tasks take turns, and each has batches of its own size

    def __init__(
        self,
        params: MultiTaskConfig,
        logging_dir: str | None = None,
        name: str | None = None,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        super().__init__(params, logging_dir, name)
        params.validate()
        self._routines = {routine.task_name: routine for routine in params.task_routines}
        if tasks is None:
            tasks = {name: self._create(routine) for name, routine in self._routines.items()}
        self.tasks: dict[str, Task] = dict(tasks)
        # Attributes of the tasks belong to the state as well. These are the dicts of attributes themselves, so that
        # attributes that are set later are found, too.
        self.parts = {name: vars(task) for name, task in self.tasks.items()}
        self._layouts: dict[bool, Layout] = {}
        self._models: tuple[keras.Model, dict[str, keras.Model]] | None = None
        self._check_tasks()

    def build_model(self) -> keras.Model:
        """Returns the model of the first task; override it for another shared model."""
        return next(iter(self.tasks.values())).build_model()

    def models(self, model: keras.Model) -> dict[str, keras.Model]:
        """Returns the model of each task: the shared model or a part of it."""
        if self._models is None or self._models[0] is not model:
            if model.compiled:
                raise UsageError(
                    "is compiled, with one loss for all tasks",
                    key="model",
                    received=model.name,
                    remedy="remove model.compile(…): each task has its own loss",
                )
            self._models = model, task_models(model, list(self.tasks))
        return self._models[1]

    def initialize(self, model: keras.Model) -> list[Any]:
        """Loads initial weights of the whole model, then those of each task's part, as configured."""
        whole = super().initialize(model)
        return [whole, *(task.initialize(self.models(model)[name]) for name, task in self.tasks.items())]

    # -- data ------------------------------------------------------------------------------------------------------

    def build_inputs(self, params: Any, input_context: Any = None) -> CombinedStream:
        """Returns the training or validation data of all tasks as one stream."""
        training = bool(params.is_training)
        seed = params.seed or 0
        parts = {name: self._part(name, params, seed) for name in self._used(training)}
        stream = self._combined(parts, training, seed)
        self._layouts[training] = stream.layout
        return stream

    def _combined(self, parts: Mapping[str, Stream], training: bool, seed: int) -> CombinedStream:
        if not training:
            return RoundsStream(parts, {name: self._routines[name].eval_steps for name in parts}, self._check_part)
        if self.task_config.mode == "joint":
            return JointStream(parts, self._check_part)
        weights = [self._routines[name].task_weight for name in parts]
        return InterleavedStream(parts, TaskSampler(weights, self._exponent, seed), self._check_part)

    def _exponent(self, step: int) -> float:
        return float(self.task_config.sampler.get().exponent(step))

    def _part(self, name: str, params: Any, seed: int) -> Stream:
        task, training = self.tasks[name], bool(params.is_training)
        section = "train_data" if training else "validation_data"
        config = getattr(self._routines[name].task_config, section).replace(is_training=training)
        config = config.replace(seed=seed if config.seed is None else config.seed)
        config = config.replace(limit_batches=config.limit_batches or params.limit_batches)
        index = list(self._routines).index(name)
        with _naming_task(name, f"task.task_routines[{index}].task_config.{section}"):
            if config.cache == "device":
                reason = "the batches of several tasks are combined on the host"
                raise UsageError(reason, key="cache", received="device", remedy="set it to auto or host")
            stream = make_stream(task.inputs_for(config), config, training=training, seed=seed)
            if isinstance(stream, ArrayStream):  # all of it can be checked now, once
                task.check_batch(stream.arrays)
        return stream

    def _check_part(self, name: str, batch: Batch) -> None:
        with _naming_task(name):
            self.tasks[name].check_batch(nest.map_leaves(lambda leaf: leaf[None], batch))

    def check_batch(self, inputs: Batch) -> None:
        """Does nothing: each task checks its own data when it is read."""

    def samples_per_step(self, inputs: Batch) -> int | None:
        """Returns the number of samples in a training step; None if it depends on the task that is drawn."""
        sizes = [size(batch) for batch in self._layouts[True].unpack(inputs)[1].values()]
        if self.task_config.mode == "joint":
            return sum(sizes)
        return sizes[0] if len(set(sizes)) == 1 else None

    def _used(self, training: bool) -> list[str]:
        """Returns the tasks that are trained, or those that are evaluated.

        Raises:
          UsageError: No task is evaluated.
        """
        used = {name: r.task_weight > 0 if training else r.eval_steps != 0 for name, r in self._routines.items()}
        if not any(used.values()):
            raise UsageError(
                "every eval_steps is 0, so there is nothing to evaluate", key="task_routines", remedy="set one to null"
            )
        return [name for name, is_used in used.items() if is_used]

    # -- steps -----------------------------------------------------------------------------------------------------

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the metrics of all tasks as one metric."""
        own: dict[str, list[keras.Metric]] = {}
        for name in self._used(training):
            with keras.name_scope(name):
                own[name] = self.tasks[name].build_metrics(training)
        if training:
            return [MultiTaskMetrics("training_loss", own)]
        return [MultiTaskMetrics("validation_loss", own, {name: self._routines[name].task_weight for name in own})]

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[Any]
    ) -> Mapping[str, Any]:
        """Trains on a combined batch: on the task that was drawn, or on all tasks."""
        models, (index, batches) = self.models(model), self._layouts[True].unpack(inputs)
        tasks = {name: self.tasks[name] for name in batches}
        with _explained():
            if self.task_config.mode == "joint":
                weights = {name: self._routines[name].task_weight for name in batches}
                return {self.loss: train_jointly(tasks, weights, batches, models, optimizer, metrics[0])}
            branches = [
                functools.partial(train_one, name, task, batches[name], models[name], optimizer, metrics[0])
                for name, task in tasks.items()
            ]
            return {self.loss: switch(index, branches)}

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[Any]) -> Mapping[str, Any]:
        """Evaluates the batch of one task; the results are in the metrics."""
        models, (index, batches) = self.models(model), self._layouts[False].unpack(inputs)
        branches = [
            functools.partial(validate_one, name, self.tasks[name], batches[name], models[name], metrics[0])
            for name in batches
        ]
        switch(index, branches)
        return {}

    # -- the tasks -------------------------------------------------------------------------------------------------

    def _create(self, routine: TaskRoutine) -> Task:
        with _naming_task(routine.task_name):
            task: Task = get_task(routine.task_config, logging_dir=self.logging_dir, name=routine.task_name)
        return task

    def _check_tasks(self) -> None:
        """Refuses tasks that cannot be trained together with others.

        Raises:
          UsageError: A task cannot; names the task and the reason.
        """
        if list(self.tasks) != list(self._routines):
            raise UsageError(f"but task_routines names {list(self._routines)}", key="tasks", received=list(self.tasks))
        for name, task in self.tasks.items():
            if task.aggregates:
                raise UsageError(
                    "aggregates its logs on the host (aggregate_logs), which is supported only for a single task",
                    key=f"task {name!r}",
                    remedy="write a keras.Metric for it, and return that from build_metrics",
                )
            if self.task_config.mode == "joint" and type(task).train_step is not Task.train_step:
                raise UsageError(
                    "overrides train_step, but in joint training all tasks share one step",
                    key=f"task {name!r}",
                    remedy="set task.mode=interleaving, or put the difference into build_losses",
                )


@contextlib.contextmanager
def _naming_task(name: str, section: str = "") -> Iterator[None]:
    """Adds the task to the keys of errors or, for errors of its data, the path of its data section."""
    try:
        yield
    except UsageError as error:
        if section:
            raise UsageError(problems_under(section, error)) from error
        first, *others = error.problems
        key = ": ".join(part for part in (f"task {name!r}", first.key) if part)
        raise UsageError([dataclasses.replace(first, key=key), *others]) from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Explains errors of backends that cannot combine the steps of several tasks."""
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise UsageError(
            "interleaving cannot be shared by several replicas of tf.distribute",
            key="task.mode",
            remedy="set task.mode=joint, or runtime.distribution_strategy=one_device, or use JAX",
        ) from error
    except ValueError as error:
        if "optimizer was built with" not in str(error):
            raise
        raise UsageError(
            "float16 updates all weights of a model at once on this backend, but a task has only a part of them",
            key="runtime.mixed_precision_dtype",
            remedy="set bfloat16, or train all tasks with task.mode=joint",
        ) from error


# -- the model of each task -------------------------------------------------------------------------------------------


def task_models(model: keras.Model, names: Sequence[str]) -> dict[str, keras.Model]:
    """Returns the model of each task; all share the layers of one.

    If a model has the attribute `sub_tasks`, a dict of models by task, those are used. If a functional model returns a
    dict of outputs by task, each task gets the part of the model that leads to its output. Any other model is used by
    every task.

    Raises:
      UsageError: Some tasks have an output, or a model in `sub_tasks`, and some have none.
    """
    given = getattr(model, "sub_tasks", None)
    if isinstance(given, Mapping):
        _require_all(given, names, "sub_tasks")
        return {name: given[name] for name in names}
    outputs = _outputs(model)
    if not isinstance(outputs, Mapping) or not set(outputs) & set(names):
        return dict.fromkeys(names, model)
    _require_all(outputs, names, "outputs")
    return {name: keras.Model(model.input, outputs[name], name=f"{model.name}_{name}") for name in names}


def _outputs(model: keras.Model) -> Any:
    """Returns the symbolic outputs of a functional model; None for other models."""
    try:
        return model.output
    except (AttributeError, ValueError):
        return None


def _require_all(held: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in held]
    if missing:
        raise UsageError(
            f"the model has {what} {', '.join(map(repr, held))}, but none for the tasks "
            f"{', '.join(map(repr, missing))}",
            key="task_routines",
            remedy=f"give the {what} the names of the tasks (task_routines[…].task_name)",
        )


# -- metrics ----------------------------------------------------------------------------------------------------------


class MultiTaskMetrics(keras.Metric):
    """The metrics and the mean loss of every task, as `<task>/<name>`.

    A mean is over the samples of its task only. The values of a task without a step are NaN, which no comparison takes
    for an improvement.

    Args:
      loss: The name of the mean loss of a task: `training_loss`, `validation_loss`.
      own: The metrics of each task, created inside `keras.name_scope(<task>)`.
      weights: If passed, the sum of the mean losses with these weights is also reported, without a prefix, unless no
        task has both a weight above 0 and a loss.
    """

    def __init__(
        self, loss: str, own: Mapping[str, Sequence[keras.Metric]], weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(name="tasks")
        self.own = {name: list(metrics) for name, metrics in own.items()}
        self.means: dict[str, dict[str, keras.Metric]] = {name: {} for name in own}
        self.samples = {name: self._count(name) for name in own}
        self._loss, self._weights = loss, dict(weights or {})
        self._without_loss: set[str] = set()  # known once their steps have been traced
        for name in own:
            self._mean(name, loss)

    @property
    def metrics(self) -> list[keras.Metric]:
        """All metrics of all tasks."""
        return [metric for name in self.own for metric in (*self.means[name].values(), *self.own[name])]

    def add(self, task: str, logs: Mapping[str, Any], loss: str, samples: int) -> None:
        """Adds the scalars that a step of a task returned; runs inside the compiled step.

        Args:
          task: The name of the task.
          logs: The logs of its step.
          loss: The key of the loss in the logs.
          samples: The number of samples of the step.
        """
        if loss not in logs:
            self._without_loss.add(task)
        for name, value in logs.items():
            if len(value.shape) == 0:
                mean = self._mean(task, self._loss if name == loss else name)
                mean.update_state(ops.cast(value, "float32"), sample_weight=float(samples))
        self.samples[task].assign(self.samples[task] + float(samples))

    def result(self) -> dict[str, Any]:
        """Returns all values by name, the weighted sum first."""
        values: dict[str, Any] = self._weighted_sum()
        for task in self.own:
            for name, metric in self._reported(task):
                found = metric.result()
                several = found if isinstance(found, Mapping) else {name: found}
                values |= {f"{task}/{key}": self._seen(task, value) for key, value in several.items()}
        return values

    def reset_state(self) -> None:
        """Resets all metrics and counts to zero."""
        for metric in self.metrics:
            metric.reset_state()
        for count in self.samples.values():
            count.assign(0.0)

    def _weighted_sum(self) -> dict[str, Any]:
        """Returns the weighted sum of the losses by name; empty if no task has both a weight and a loss."""
        counted = [task for task, weight in self._weights.items() if weight > 0 and task not in self._without_loss]
        losses = {task: self.means[task][self._loss].result() for task in counted}
        parts = [self._weights[task] * self._seen(task, loss) for task, loss in losses.items()]
        return {self._loss: sum(parts)} if parts else {}

    def _reported(self, task: str) -> list[tuple[str, keras.Metric]]:
        means = self.means[task].items()
        known = [(name, m) for name, m in means if name != self._loss or task not in self._without_loss]
        return [*known, *((metric.name, metric) for metric in self.own[task])]

    def _seen(self, task: str, value: Any) -> Any:
        """Returns a value, or NaN if the task had no samples."""
        value = ops.convert_to_tensor(value)
        value = value if keras.backend.is_float_dtype(value.dtype) else ops.cast(value, "float32")
        return ops.where(ops.convert_to_tensor(self.samples[task]) > 0, value, ops.cast(math.nan, value.dtype))

    def _count(self, task: str) -> keras.Variable:
        with keras.name_scope(task):
            return self.add_variable((), "zeros", dtype="float32", name="samples")

    def _mean(self, task: str, name: str) -> keras.Metric:
        """Returns the mean of a scalar; creates it for a new scalar."""
        if name not in self.means[task]:
            with keras.name_scope(task):
                self.means[task][name] = keras.metrics.Mean(name=name, dtype="float32")
        return self.means[task][name]


# -- steps: one task, selected at run time, or all tasks on the sum of their losses -----------------------------------


def train_one(
    name: str, task: Task, batch: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: MultiTaskMetrics
) -> Any:
    """Runs a task's own train step; returns its loss."""
    logs = task.train_step(batch, model, optimizer, metrics.own[name])
    if task.loss not in logs:
        raise UsageError(
            f"train_step returned no {task.loss!r}", key=f"task {name!r}", remedy="return {self.loss: loss}"
        )
    metrics.add(name, logs, task.loss, size(batch))
    return ops.cast(logs[task.loss], "float32")


def validate_one(name: str, task: Task, batch: Batch, model: keras.Model, metrics: MultiTaskMetrics) -> None:
    """Runs a task's own validation step."""
    logs = task.validation_step(batch, model, metrics.own[name]) or {}
    metrics.add(name, logs, task.loss, size(batch))


def train_jointly(
    tasks: Mapping[str, Task],
    weights: Mapping[str, float],
    batches: Mapping[str, Batch],
    models: Mapping[str, keras.Model],
    optimizer: keras.Optimizer,
    metrics: MultiTaskMetrics,
) -> Any:
    """Trains on a batch of every task at once; returns the weighted sum of their losses.

    The loss of a task is the same as if it were trained alone, including the losses of the layers of its model.
    """
    parts = {name: task.unpack(batches[name]) for name, task in tasks.items()}
    weighted = {name: weight_argument(task, parts[name][2]) for name, task in tasks.items()}

    def loss_fn() -> tuple[Any, tuple[dict, dict]]:
        losses, outputs = {}, {}
        for name, task in tasks.items():
            features, labels, _ = parts[name]
            outputs[name] = models[name](features, training=True)
            own = models[name].losses
            with explain_missing_labels(features, labels):
                losses[name] = task.build_losses(labels, outputs[name], aux_losses=own, **weighted[name])
        total = sum(ops.cast(loss, "float32") * weights[name] for name, loss in losses.items())
        return total, (losses, outputs)

    variables = _union(models[name].trainable_variables for name in tasks)
    (total, (losses, outputs)), grads = value_and_grad(loss_fn, variables, optimizer=optimizer)
    optimizer.apply(grads, variables)
    for name, task in tasks.items():
        with explain_missing_labels(*parts[name][:2]):
            task.process_metrics(metrics.own[name], parts[name][1], outputs[name], **weighted[name])
        metrics.add(name, {task.loss: losses[name]}, task.loss, size(batches[name]))
    return total


def size(batch: Batch) -> int:
    """Returns the number of samples in a batch."""
    return int(nest.flatten(batch)[0].shape[0])


def _union(groups: Any) -> list[keras.Variable]:
    return list({id(variable): variable for group in groups for variable in group}.values())
