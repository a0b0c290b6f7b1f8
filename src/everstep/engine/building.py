"""`StepsBuilder`: builds what the steps of an engine need, on the shapes of one batch.

Keras objects create variables when they are first called, metrics and optimizers too. So both steps are traced once
before anything is compiled. What they have created then is collected under stable keys: it is the state of the run.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from everstep.engine import state as states
from everstep.engine.batch_dtypes import check_leaves
from everstep.engine.explanations import explain, explain_shapes
from everstep.engine.logs import check_unique, logs_in, train_logs, validation_logs, watched_log
from everstep.engine.probe import collection_paused, watch_variables
from everstep.engine.protocol import Backend, Traced
from everstep.engine.steps import Steps
from everstep.engine.window import measure, size_of
from everstep.task import adapt_loss_scaling, compiled_metrics, unpack
from everstep.task.optim import weigh_batches
from everstep.types import Batch


class StepsBuilder:
    """Builds the steps of one engine.

    Args:
      steps: The steps.
      backend: Traces them.

    Attributes:
      unassigned: Keys of variables that no step assigns through Keras.
      flops: About the floating-point operations of a step of each kind.
      watched_log: The name of the training log that must stay finite.
    """

    def __init__(self, steps: Steps, backend: Backend) -> None:
        self._steps, self._backend = steps, backend
        self.unassigned: set[str] = set()
        self.flops: dict[str, float] = {}
        self.watched_log = ""
        self._used: list[keras.Variable] = []  # the variables that steps use
        self._label_classes: set[int] = set()

    def build(self, train_batch: Batch | None, validation_batch: Batch | None, measures_norms: bool = False) -> None:
        """Builds what is created lazily, on the shapes of one batch, and sets `variables`; reads no value of them.

        Raises:
          UsageError: A step has no loss, creates variables, uses variables that no object holds, or draws unseeded
            random numbers.
        """
        steps = self._steps
        batch = validation_batch if train_batch is None else train_batch
        steps.full_batch = size_of(batch)
        if train_batch is not None:
            self._backend.workers.check_batch(steps.full_batch)
        own = {kind: steps.task.build_metrics(training=kind == "train") for kind in ("train", "validation")}
        for given in (train_batch, validation_batch):
            check_leaves(given)
        shapes_explained = explain_shapes(steps.model, (train_batch, validation_batch))
        with shapes_explained, explain(steps.task), collection_paused(), watch_variables() as watched:
            self._build_model(batch)
            self._build_optimizers()
            norms = {"train": measure(steps.task, steps.model, steps.optimizer, measures_norms)}
            built = len(watched.created)
            watched.assigned.clear()  # building assigns, too
            shapes = self._probe(train_batch, validation_batch, own)
            if any(variable.trainable for variable in watched.created[built:]):  # an optimizer may need them
                shapes = self._probe(train_batch, validation_batch, own)
        self.use_label_classes()
        for kind, logged in shapes.items():
            check_unique([metric.name for metric in own[kind]])
            steps.windows[kind] = self._backend.sums(
                logged, self._metrics(kind, own), steps.task.log_reduction(kind), norms.get(kind)
            )
            steps.windows[kind].reset()
        self.watched_log = watched_log(list(shapes.get("train", {})), steps.task)
        if self.watched_log and self._backend.workers.sees_whole_loss:
            steps.windows["train"].watch(self.watched_log)
        self._used = watched.all
        steps.variables = self.collected()
        states.check_held(steps.variables, self._used)
        states.warn_of_untrained(steps.variables)
        # Optimizers do not assign their own variables through Keras.
        slots = {id(variable) for optimizer in steps.optimizers for variable in optimizer.variables}
        steps.frozen = states.frozen(steps.variables, watched.assigned | slots)
        self.unassigned = {key for key, variable in steps.variables.items() if id(variable) not in watched.assigned}

    def collected(self) -> dict[str, keras.Variable]:
        """Returns every variable of the run by key, as the objects hold them now."""
        return states.collect(self._owners(), self._used, self._steps.task.keeps_other_variables)

    def use_label_classes(self) -> None:
        """Tells the task how many classes its labels have, as the losses of its steps have shown."""
        self._steps.task.label_classes = min(self._label_classes, default=None)

    def _metrics(self, kind: str, own: Mapping[str, list[keras.Metric]]) -> list[keras.Metric]:
        """Returns the metrics of the task and of the model, some of which exist only after a step was traced."""
        steps = self._steps
        own_steps = steps.task.log_reduction(kind) == "last"
        return [*own[kind], *(compiled_metrics(steps.model, own_steps) if steps.model.compiled else [])]

    def _build_model(self, batch: Batch) -> None:
        steps = self._steps
        if not steps.model.built and type(steps.model).call is not keras.Model.call:

            def call(features: Any) -> dict[str, Any]:
                steps.task.inference_step(steps.composed(features), steps.model)
                return {}  # the outputs may be nested in any way, and are not needed

            self.trace(call, unpack(batch)[0])

    def _build_optimizers(self) -> None:
        steps = self._steps
        if steps.optimizer is not None and not steps.optimizer.built and steps.model.built:
            steps.optimizer.build(steps.model.trainable_variables)
        for optimizer in steps.optimizers:
            adapt_loss_scaling(optimizer)
            if not steps.task.averages_batches:
                weigh_batches(optimizer)

    def _probe(
        self, train_batch: Batch | None, validation_batch: Batch | None, own: Mapping[str, list]
    ) -> dict[str, dict[str, tuple]]:
        """Traces both steps once; returns the shapes of their logs. What they build lazily exists afterwards."""
        steps = self._steps
        logged: dict[str, dict[str, tuple]] = {}
        if train_batch is not None:
            traced = self.trace(lambda b: steps.train(b, self._metrics("train", own)), train_batch)
            logged["train"] = train_logs(traced.shapes, steps.task)
            self.flops["train"] = traced.flops * (1 if self._backend.traces_gradients else 3)
        if validation_batch is not None:
            metrics = self._metrics("validation", own)
            traced = self.trace(lambda b: logs_in(steps.validate(b, metrics)), validation_batch)
            logged["validation"] = validation_logs(traced.shapes, steps.task)
            self.flops["validation"] = traced.flops
        return logged

    def trace(self, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        """Traces a function of a batch on the device, without changing any variable.

        Args:
          step: Returns tensors by name.
          batch: A batch on the host.
        """
        workers = self._backend.workers
        traced = self._backend.trace(self._steps, lambda own: workers.trace(step, own), workers.own_batch(batch))
        self._label_classes |= traced.label_classes
        return traced

    def _owners(self) -> dict[str, Any]:
        steps = self._steps
        owners: dict[str, Any] = {"model": steps.model, "optimizer": steps.optimizer}
        owners |= {f"metrics.{kind}": window.metrics for kind, window in steps.windows.items()}
        owners["metrics.model"] = steps.model.metrics if steps.model.compiled else None
        owners |= states.model_owners(steps.model, self._used)
        owners |= states.task_owners(steps.task)
        owners |= {f"window.{kind}": window.owners for kind, window in steps.windows.items()}
        owners |= self._backend.owners()
        return {role: owner for role, owner in owners.items() if owner is not None}
