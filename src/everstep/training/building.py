"""The model of a job: built, given its class, compiled."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from everstep.errors import UsageError, kind_of

_BY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
"""Names that Keras makes a metric of when it sees what the model returns."""


def build_model(build: Callable[[], Any], custom_class: Any, optimizer: Any, loss: Any, metrics: Any) -> keras.Model:
    """Returns a compiled model.

    Args:
      build: Makes the model.
      custom_class: The class that is to train it, `custom_model_class`; None for its own.
      optimizer: As for `compile`.
      loss: As for `compile`.
      metrics: As for `compile`.

    Raises:
      UsageError: `build` returns no model, or one that cannot be given the class; or `compile` refuses.
    """
    model = build()
    if not isinstance(model, keras.Model):
        raise UsageError(f"build_model_func returned {kind_of(model)}, expected a keras.Model")
    model = _as_class(model, custom_class)
    _check_loss(loss)
    _check_metrics(metrics)
    try:
        model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    except (ValueError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"optimizer, loss, metrics: model.compile refuses them: {first}") from error
    return model


def named(value: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns what `compile` is given, with the user's own objects in place of their names."""
    if isinstance(value, str):
        return (custom_objects or {}).get(value, value)
    if isinstance(value, Mapping):
        return {key: named(each, custom_objects) for key, each in value.items()}
    return [named(each, custom_objects) for each in value] if isinstance(value, list | tuple) else value


def _check_loss(loss: Any) -> None:
    """Refuses the name of a loss that nobody knows: Keras would find out in the middle of the first step."""
    for name in keras.tree.flatten(loss):
        if name is not None and not callable(name):
            try:
                keras.losses.get(name)
            except ValueError:
                raise UsageError(f"loss: received {name!r}, which is no loss that Keras knows") from None


def _check_metrics(metrics: Any) -> None:
    """Refuses the name of a metric that nobody knows, before data is read."""
    for name in keras.tree.flatten(metrics):
        if isinstance(name, str) and name.lower() not in _BY_OUTPUT:
            try:
                keras.metrics.get(name)
            except ValueError:
                raise UsageError(f"metrics: received {name!r}, which is no metric that Keras knows") from None


@contextlib.contextmanager
def known_objects(custom_objects: Mapping[str, Any] | None, custom_class: Any) -> Iterator[None]:
    """Inside the block Keras knows the user's classes by name."""
    objects = dict(custom_objects or {})
    if isinstance(custom_class, type):
        objects.setdefault(custom_class.__name__, custom_class)
    with keras.saving.custom_object_scope(objects):
        yield


def _as_class(model: keras.Model, custom_class: Any) -> keras.Model:
    """Returns the same layers in a model of the class; one that is of it already stays."""
    if custom_class is None or (isinstance(custom_class, type) and isinstance(model, custom_class)):
        return model
    inputs, outputs = _ends(model)
    if inputs is None:
        raise UsageError(
            f"custom_model_class: {type(model).__name__} has no inputs to make a {_name(custom_class)} from: let "
            "build_model_func return one"
        )
    try:
        made = custom_class(inputs=inputs, outputs=outputs)
    except TypeError as error:
        raise UsageError(
            f"custom_model_class: {_name(custom_class)}(inputs=…, outputs=…) fails: {error}; let "
            "build_model_func return one"
        ) from error
    if not isinstance(made, keras.Model):
        raise UsageError(f"custom_model_class: it made a {type(made).__name__}, expected a keras.Model")
    return made


def _ends(model: keras.Model) -> tuple[Any, Any]:
    """Returns a model's inputs and outputs in their structure; None for one that is written as a class."""
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        return None, None
    structured = getattr(model, "_inputs_struct", None), getattr(model, "_outputs_struct", None)
    if None not in structured:
        return structured
    return _single(model.inputs), _single(model.outputs)


def _single(tensors: Any) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


def _name(custom_class: Any) -> str:
    return str(getattr(custom_class, "__name__", custom_class))
