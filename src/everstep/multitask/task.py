"""`MultiTask`: several tasks as one, with one model."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.config import get_task
from everstep.config.problem import ConfigError, problems_under
from everstep.data import nest
from everstep.data.arrays import ArrayStream
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.grad import switch
from everstep.multitask import steps
from everstep.multitask.config import MultiTaskConfig, TaskRoutine
from everstep.multitask.layout import Layout
from everstep.multitask.metrics import MultiTaskMetrics
from everstep.multitask.models import task_models
from everstep.multitask.sampler import TaskSampler
from everstep.multitask.streams import CombinedStream, InterleavedStream, JointStream, RoundsStream
from everstep.task.task import Task
from everstep.types import Batch


class MultiTask(Task):
    """Trains tasks in turn or jointly, and evaluates each on its own data.

        config = MultiTaskConfig(task_routines=[
            TaskRoutine(task_name="digit", task_config=DigitConfig()),
            TaskRoutine(task_name="parity", task_config=ParityConfig(), task_weight=0.5),
        ])
        task = everstep.get_task(config)  # a MultiTask; run_experiment takes it as any other

    The tasks share one model, by default that of the first task; subclass it and write `build_model` for another, with
    one output per task (see `everstep.multitask.models.task_models`). Logs have the tasks' names in front:
    `digit/accuracy`, `parity/validation_loss`.

    Args:
      params: A MultiTaskConfig.
      logging_dir: Where the run writes.
      name: A name for logs.
      tasks: The tasks by name, where they are not to be made from their configurations.
    """

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
        self.tasks: dict[str, Task] = dict(tasks) if tasks is not None else self._made()
        # What the tasks keep in their attributes belongs to the state as well; these are the very dicts, so that it
        # is found there whenever it comes to be.
        self.parts = {name: vars(task) for name, task in self.tasks.items()}
        self._layouts: dict[bool, Layout] = {}
        self._models: tuple[keras.Model, dict[str, keras.Model]] | None = None
        self._check_tasks()

    def build_model(self) -> keras.Model:
        """Returns the first task's model; override it for another that they share."""
        return next(iter(self.tasks.values())).build_model()

    def models(self, model: keras.Model) -> dict[str, keras.Model]:
        """Returns each task's model, which is the shared one or a part of it."""
        if self._models is None or self._models[0] is not model:
            if model.compiled:
                raise UsageError(
                    f"model {model.name!r} is compiled, with one loss for all tasks: leave out model.compile(…); the "
                    "losses are those of the tasks"
                )
            self._models = model, task_models(model, list(self.tasks))
        return self._models[1]

    def initialize(self, model: keras.Model) -> list[Any]:
        """Loads initial weights: of the whole model, then, as each task's configuration says, of its part."""
        whole = super().initialize(model)
        return [whole, *(task.initialize(self.models(model)[name]) for name, task in self.tasks.items())]

    # -- data ------------------------------------------------------------------------------------------------------

    def build_inputs(self, params: Any, input_context: Any = None) -> CombinedStream:
        """Returns the tasks' training data, or their validation data, as one stream."""
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
        with _about(name, f"task.task_routines[{index}].task_config.{section}"):
            stream = make_stream(task.inputs_for(config), config, training=training, seed=seed)
            if isinstance(stream, ArrayStream):  # all of it can be looked at now, once
                task.check_batch(stream.arrays)
        return stream

    def _check_part(self, name: str, batch: Batch) -> None:
        with _about(name):
            self.tasks[name].check_batch(nest.map_leaves(lambda leaf: leaf[None], batch))

    def check_batch(self, inputs: Batch) -> None:
        """Does nothing: each task has looked at its own data when it was read."""

    def samples_per_step(self, inputs: Batch) -> int | None:
        """Returns how many samples a training step learns from; None where that depends on the task drawn for it."""
        sizes = [steps.size(batch) for batch in self._layouts[True].unpack(inputs)[1].values()]
        if self.task_config.mode == "joint":
            return sum(sizes)
        return sizes[0] if len(set(sizes)) == 1 else None

    def _used(self, training: bool) -> list[str]:
        """Returns the tasks that are trained, or those that are evaluated.

        Raises:
          UsageError: None is evaluated.
        """
        used = {name: r.task_weight > 0 if training else r.eval_steps != 0 for name, r in self._routines.items()}
        if not any(used.values()):
            raise UsageError("task_routines: every eval_steps is 0, so there is nothing to evaluate: set one to null")
        return [name for name, is_used in used.items() if is_used]

    # -- steps -----------------------------------------------------------------------------------------------------

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the metrics of all tasks, as one."""
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
        """Learns from a combined batch: from that of the task that was drawn, or from all."""
        models, (index, batches) = self.models(model), self._layouts[True].unpack(inputs)
        tasks = {name: self.tasks[name] for name in batches}
        with _explained():
            if self.task_config.mode == "joint":
                weights = {name: self._routines[name].task_weight for name in batches}
                return {self.loss: steps.train_jointly(tasks, weights, batches, models, optimizer, metrics[0])}
            branches = [
                functools.partial(steps.train_one, name, task, batches[name], models[name], optimizer, metrics[0])
                for name, task in tasks.items()
            ]
            return {self.loss: switch(index, branches)}

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[Any]) -> Mapping[str, Any]:
        """Evaluates a combined batch: that of the task whose turn it is. What comes of it is in the metrics."""
        models, (index, batches) = self.models(model), self._layouts[False].unpack(inputs)
        branches = [
            functools.partial(steps.validate_one, name, self.tasks[name], batches[name], models[name], metrics[0])
            for name in batches
        ]
        switch(index, branches)
        return {}

    # -- the tasks -------------------------------------------------------------------------------------------------

    def _made(self) -> dict[str, Task]:
        return {name: self._make(routine) for name, routine in self._routines.items()}

    def _make(self, routine: TaskRoutine) -> Task:
        with _about(routine.task_name):
            made: Task = get_task(routine.task_config, logging_dir=self.logging_dir, name=routine.task_name)
        return made

    def _check_tasks(self) -> None:
        """Refuses tasks that cannot be trained with others.

        Raises:
          UsageError: Names the task, and what about it.
        """
        if list(self.tasks) != list(self._routines):
            raise UsageError(f"tasks: received {list(self.tasks)}, but task_routines names {list(self._routines)}")
        for name, task in self.tasks.items():
            if task.aggregates:
                raise UsageError(
                    f"task {name!r} gathers its logs on the host (aggregate_logs), which only a task by itself can: "
                    "make a keras.Metric of it, and return it from build_metrics"
                )
            if self.task_config.mode == "joint" and type(task).train_step is not Task.train_step:
                raise UsageError(
                    f"task {name!r} has a train_step of its own, but in joint training one step serves all: set "
                    "task.mode=interleaving, or say what differs in build_losses"
                )


@contextlib.contextmanager
def _about(name: str, section: str = "") -> Iterator[None]:
    """Says in errors which task they are about; of those about its data's keys, where in the configuration they are."""
    try:
        yield
    except UsageError as error:
        if section and isinstance(error, ConfigError):
            raise ConfigError(problems_under(section, error)) from error
        raise UsageError(f"task {name!r}: {error}") from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Says what to do where a step cannot be made of those of several tasks."""
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise UsageError(
            "task.mode: interleaving cannot be shared by several replicas of tf.distribute: set task.mode=joint, or "
            "runtime.distribution_strategy=one_device, or use JAX"
        ) from error
    except ValueError as error:
        if "optimizer was built with" not in str(error):
            raise
        raise UsageError(
            "runtime.mixed_precision_dtype: float16 steps all weights of a model at once on this backend, but a task "
            "has only a part of them: set bfloat16, or train all tasks with task.mode=joint"
        ) from error
