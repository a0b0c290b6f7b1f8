"""The size of a model's input, for the function that prepares images."""

from typing import Any

import keras

from everstep.errors import UsageError

Size = int | tuple[int, int]


def input_size(model: keras.Model, name: str | None = None) -> Size:
    """Returns the size of the images a model takes.

    Images are its inputs with height, width and channels; where it has none, all its inputs count, each by its first
    axis. If they agree on a size, it is that one: a number where height and width are equal, else both.

    Args:
      model: The model.
      name: Of the input, where they differ.

    Raises:
      UsageError: The model does not say, or inputs differ; lists them.
    """
    shapes = _shapes(model)
    if name is not None:
        if name not in shapes:
            raise UsageError(f"the model has no input {name!r}; it has {_listed(shapes)}")
        shapes = {name: shapes[name]}
    images = {key: shape for key, shape in shapes.items() if len(shape) == 4}
    sizes = {_size(shape) for shape in (images or shapes).values()}
    if len(sizes) != 1:
        raise UsageError(f"the inputs have no size in common: {_listed(shapes)}; say which: get_model_input_size(name)")
    size = sizes.pop()
    if None in (size if isinstance(size, tuple) else (size,)):
        raise UsageError(f"the model takes inputs of any size: {_listed(shapes)}; choose one yourself")
    return size


def _shapes(model: keras.Model) -> dict[str, tuple[Any, ...]]:
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise UsageError(f"{type(model).__name__} does not say what it takes: build it from keras.Input(shape=…)")
    return {each.name: tuple(each.shape) for each in inputs}


def _size(shape: tuple[Any, ...]) -> Any:
    """Returns what counts of a shape, whose first axis is the batch."""
    if len(shape) != 4:
        return shape[1] if len(shape) > 1 else None
    first = 2 if keras.config.image_data_format() == "channels_first" else 1
    height, width = shape[first : first + 2]
    return height if height == width else (height, width)


def _listed(shapes: dict[str, tuple[Any, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
