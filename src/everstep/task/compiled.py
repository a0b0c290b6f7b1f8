"""`CompiledTask`: a compiled Keras model as a task, for code that uses `model.fit`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.errors import UsageError, kind_of
from everstep.task.grad import losses_divided_by_keras, mark_scaled
from everstep.task.optim.optimizers import held_optimizers
from everstep.task.task import Task
from everstep.types import Batch


class CompiledTask(Task):
    """Trains a compiled model with its own loss, metrics, optimizer and, if it overrides them, its own steps.

        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        task = CompiledTask(model, (x, y), (x_test, y_test))

    If a model overrides `train_step(data)` or `test_step(data)`, that step is used, on the backend for which Keras
    defines its signature; one with the stateless signature, `train_step(state, data)`, gets the lists it expects. Such
    a step may return any logs. Variables in other attributes of the model, such as further optimizers, are part of the
    state, and so are those that only its loss has. A model that overrides `compute_metrics` or `get_metrics_result` is
    trained by Keras's own steps, which call them.

    Args:
      model: The compiled model.
      train_data: Anything `build_inputs` may return: arrays, a dataset, a generator function, a Stream.
      validation_data: The same for evaluation.
      params: A TaskConfig whose data sections configure how arrays are batched.
      watch: The log of the model's own `train_step` that must stay finite; by default `loss`, or else the first one.
    """

    averages_batches = True
    keeps_other_variables = (
        True  # `fit` takes losses with variables, and layers with unseeded functions of keras.random
    )

    def __init__(
        self,
        model: keras.Model,
        train_data: Any = None,
        validation_data: Any = None,
        params: Any = None,
        watch: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(params, **kwargs)
        self.watch = watch
        require_compiled(model)
        self._model, self._train_data, self._validation_data = model, train_data, validation_data
        self._own_train = _Override.of(model, "train_step")
        self._own_test = _Override.of(model, "test_step")

    def build_model(self) -> keras.Model:
        """Returns the model."""
        return self._model

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the training data or the validation data that were passed."""
        return self._train_data if params.is_training else self._validation_data

    def log_reduction(self, kind: str) -> str:
        """Returns `last` for a model's own steps: they return the results of its metrics so far."""
        return "last" if (self._own_train if kind == "train" else self._own_test) else "mean"

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Trains on one batch as the model was compiled."""
        if self._own_train is None:
            return super().train_step(inputs, model, optimizer, metrics)
        for held in held_optimizers(optimizer, model):
            mark_scaled(held)  # the step scales the loss itself
        with losses_divided_by_keras():
            return self._own_train(inputs)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch as the model was compiled."""
        if self._own_test is None:
            return super().validation_step(inputs, model, metrics)
        return self._own_test(inputs)


def require_compiled(model: keras.Model) -> None:
    """Checks that a model can be trained.

    Raises:
      UsageError: It is not a model, is not compiled, or has no optimizer.
    """
    if not isinstance(model, keras.Model):
        raise UsageError(f"is {kind_of(model)}, expected a keras.Model", key="model")
    if not model.compiled:
        raise UsageError(
            "is not compiled", key="model", received=model.name, remedy="call model.compile(optimizer=…, loss=…) first"
        )
    if model.optimizer is None:
        raise UsageError(
            "has no optimizer", key="model", received=model.name, remedy="pass one to model.compile(optimizer=…)"
        )


def needs_labels(model: keras.Model, step: str = "train_step") -> bool:
    """Returns whether the step of a model compares outputs with labels, as Keras's own steps do."""
    own = any(getattr(type(model), name) is not getattr(keras.Model, name) for name in (step, "compute_loss"))
    return model.loss is not None and not own


class _Override:
    """A step that the class of a model overrides, called as Keras calls it on this backend."""

    def __init__(self, model: keras.Model, name: str) -> None:
        self._model, self._step = model, getattr(model, name)
        self._with_optimizer = name == "train_step"
        written = inspect.signature(self._step)
        expected = list(inspect.signature(getattr(keras.Model, name)).parameters)[1:]
        self._stateless = len(expected) == 2
        try:
            written.bind(*expected)
        except TypeError:
            raise UsageError(
                f"({', '.join(written.parameters)}) does not fit the backend {keras.backend.backend()!r}, where Keras "
                f"calls {name}({', '.join(expected)})",
                key=f"{type(model).__name__}.{name}",
                remedy="change the backend, or write an everstep.Task with everstep.value_and_grad, which runs on "
                "every backend",
            ) from None

    @classmethod
    def of(cls, model: keras.Model, name: str) -> "_Override | None":
        changing = (name, "compute_metrics", "get_metrics_result")
        own = any(getattr(type(model), hook) is not getattr(keras.Model, hook) for hook in changing)
        return cls(model, name) if own else None

    def __call__(self, inputs: Batch) -> Mapping[str, Any]:
        if not self._stateless:
            return self._step(inputs)
        self._model._symbolic_build(data_batch=inputs)  # as Keras does, so that the lists below are complete
        model = self._model
        optimizer = [model.optimizer.variables] if self._with_optimizer else []
        groups = [model.trainable_variables, model.non_trainable_variables, *optimizer, model.metrics_variables]
        logs, state = self._step(tuple([v.value for v in group] for group in groups), inputs)
        for group, values in zip(groups, state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
        return logs
