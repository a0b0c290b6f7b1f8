"""The model of a job: built, converted to its class and compiled on the requested device; and its input size."""

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from everstep.engine import get_distribution_strategy
from everstep.errors import Problem, UsageError, kind_of, plain_text

logger = logging.getLogger(__name__)

FALLBACK = "EVERSTEP_DEVICE_FALLBACK"
"""Set to `cpu`, a job with `use_tpu` trains on the CPU where there is no TPU."""

_ADDRESSES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
Size = int | tuple[int, int]


def check_function(build: Any) -> None:
    """Refuses a `build_model_func` that cannot be called without arguments.

    Raises:
      UsageError: It is not callable, or needs arguments.
    """
    if not callable(build) or isinstance(build, keras.Model):
        raise UsageError("expected a function without arguments", key="build_model_func", received=build)
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise UsageError(
            f"cannot be called without arguments: {error}",
            key="build_model_func",
            remedy="bind them, as in functools.partial(build_model, num_classes=10)",
        ) from None
    except ValueError:  # a function in another language does not show its parameters
        return


def build_model(build: Callable[[], Any], custom_class: Any, optimizer: Any, loss: Any, metrics: Any) -> keras.Model:
    """Returns a compiled model.

    Args:
      build: Builds the model, not compiled.
      custom_class: `custom_model_class`, whose steps train the model; None for the model's own.
      optimizer: As for `compile`.
      loss: As for `compile`.
      metrics: As for `compile`.

    Raises:
      UsageError: `build` returns no model, one that is compiled, or one that cannot be converted; or `compile` fails.
    """
    model = build()
    if not isinstance(model, keras.Model):
        raise UsageError(f"returned {kind_of(model)}, expected a keras.Model", key="build_model_func")
    _refuse_compiled(model)
    model = _as_class(model, custom_class)
    try:
        model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    except (ValueError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"model.compile fails: {first}", key="optimizer, loss, metrics") from error
    return model


def _refuse_compiled(model: keras.Model) -> None:
    """Refuses a model that has an optimizer and a loss of its own: `Training` would silently replace them.

    A model that an earlier `Training` of the same process has compiled is refused as well. It may be trained already,
    and every start has to build the same model.
    """
    if not getattr(model, "compiled", False):
        return
    loss = getattr(model.loss, "__name__", None) or getattr(model.loss, "name", model.loss)
    raise UsageError(
        f"returned a model that is compiled already ({type(model.optimizer).__name__}, {loss})",
        key="build_model_func",
        remedy="pass optimizer, loss and metrics to Training, and return a new model without compile(), or "
        "keras.models.load_model(path, compile=False)",
    )


def named(value: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns an argument of `compile` with the user's objects in place of their names."""
    if isinstance(value, str):
        return (custom_objects or {}).get(value, value)
    if isinstance(value, Mapping):
        return {key: named(each, custom_objects) for key, each in value.items()}
    return [named(each, custom_objects) for each in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def known_objects(custom_objects: Mapping[str, Any] | None, custom_class: Any) -> Iterator[None]:
    """Inside the block Keras knows the user's classes by name."""
    objects = dict(custom_objects or {})
    if isinstance(custom_class, type):
        objects.setdefault(custom_class.__name__, custom_class)
    with keras.saving.custom_object_scope(objects):
        yield


def _as_class(model: keras.Model, custom_class: Any) -> keras.Model:
    """Returns a model of the class with the same layers; a model that already is one is returned unchanged."""
    if custom_class is None or (isinstance(custom_class, type) and isinstance(model, custom_class)):
        return model
    key, name = "custom_model_class", str(getattr(custom_class, "__name__", custom_class))
    remedy = f"let build_model_func return a {name}"
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise UsageError(f"{type(model).__name__} has no inputs to build a {name} from", key=key, remedy=remedy)
    inputs, outputs = getattr(model, "_inputs_struct", None), getattr(model, "_outputs_struct", None)
    if inputs is None or outputs is None:
        inputs, outputs = (ends[0] if len(ends) == 1 else ends for ends in (model.inputs, model.outputs))
    try:
        result = custom_class(inputs=inputs, outputs=outputs)
    except TypeError as error:
        raise UsageError(f"{name}(inputs=…, outputs=…) fails: {error}", key=key, remedy=remedy) from error
    if not isinstance(result, keras.Model):
        raise UsageError(f"it built a {type(result).__name__}, expected a keras.Model", key=key)
    return result


def choose_strategy(use_tpu: bool) -> Any:
    """Returns the strategy to train with; None for one device, which needs none.

    Raises:
      UsageError: There is no TPU, and `EVERSTEP_DEVICE_FALLBACK` is not `cpu`.
    """
    if not use_tpu:
        return None
    address = next((os.environ[name] for name in _ADDRESSES if os.environ.get(name)), None)
    try:
        return get_distribution_strategy("tpu", tpu_address=address)
    except UsageError as error:
        fallback = os.environ.get(FALLBACK, "")
        if fallback not in ("", "cpu"):
            raise UsageError("the only value is 'cpu'", key=FALLBACK, received=fallback) from None
        # Without its key, which is one of a configuration that this user does not have.
        reason = plain_text(UsageError(Problem("", error.reason)))
        if fallback:
            logger.warning("use_tpu: %s; training on the CPU instead, because of %s=cpu", reason, FALLBACK)
            return None
        raise UsageError(
            reason,
            key="use_tpu",
            received=True,
            remedy=f"set TPU_NAME to its name; to train without one: use_tpu=False, or {FALLBACK}=cpu",
        ) from error


def make_optimizer(optimizer: Any, strategy: Any) -> Any:
    """Returns the user's optimizer: the same object on one device, a new one with the same settings for a strategy.

    A strategy needs variables that were created in its scope, and an optimizer creates some when it is created.
    """
    if strategy is None or not isinstance(optimizer, keras.Optimizer):
        return optimizer
    return type(optimizer).from_config(optimizer.get_config())


def input_size(model: keras.Model, name: str | None = None) -> Size:
    """Returns the size of the images a model takes.

    Images are its inputs with height, width and channels; where it has none, all its inputs count, each by its first
    axis. If they agree on a size, it is that one: a number where height and width are equal, else both.

    Args:
      model: The model.
      name: The name of an input, where they differ.

    Raises:
      UsageError: The model declares no size, or inputs differ; lists them.
    """
    if not getattr(model, "inputs", None):
        raise UsageError(
            "declares no inputs",
            key="model",
            received=type(model).__name__,
            remedy="build it from keras.Input(shape=…)",
        )
    shapes = {each.name: tuple(each.shape) for each in model.inputs}
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if name is not None:
        if name not in shapes:
            raise UsageError(f"the model has no such input; it has {listed}", key="name", received=name)
        shapes = {name: shapes[name]}
    images = {key: shape for key, shape in shapes.items() if len(shape) == 4}
    sizes = {_size(shape) for shape in (images or shapes).values()}
    if len(sizes) != 1:
        raise UsageError(f"the inputs have no size in common: {listed}", remedy="name one: get_model_input_size(name)")
    size = sizes.pop()
    if None in (size if isinstance(size, tuple) else (size,)):
        raise UsageError(f"the model takes inputs of any size: {listed}", remedy="choose one yourself")
    return size


def _size(shape: tuple[Any, ...]) -> Any:
    """Returns the size in a shape, whose first axis is the batch."""
    if len(shape) != 4:
        return shape[1] if len(shape) > 1 else None
    first = 2 if keras.config.image_data_format() == "channels_first" else 1
    height, width = shape[first : first + 2]
    return height if height == width else (height, width)
