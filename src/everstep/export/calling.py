"""Calls of a function that is exported: the batch it is tried with, its live answer, and that of the SavedModel."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.errors import UsageError
from everstep.export import tensorflow_files

Outputs = dict[str, np.ndarray]

_BATCH, _OPEN = 2, 32  # sizes of open dimensions in a batch that is made up


def spec_of(sample: Any) -> Any:
    """Returns the input signature that a sample has, with any batch size."""
    return keras.tree.map_structure(_spec, sample)


def _spec(leaf: Any) -> keras.InputSpec:
    import tensorflow as tf

    array = tf.convert_to_tensor(leaf)
    return keras.InputSpec(shape=(None, *array.shape[1:]), dtype=array.dtype.name)


def arguments(concrete: Any, sample: Any, name: str) -> tuple:
    """Returns the positional arguments for a concrete function: a sample in its form, or one that is made up.

    Args:
      concrete: The function.
      sample: Its one argument, or, of several, a tuple or a mapping by their names; None for made-up numbers.
      name: The function's name, for messages.

    Raises:
      UsageError: The sample does not fit, or has to be given: a string cannot be made up.
    """
    specs = concrete.structured_input_signature[0]
    if sample is None:
        return keras.tree.map_structure(lambda spec: _made_up(spec, name), specs)
    given = _positional(specs, sample)
    try:
        return keras.tree.map_structure(lambda spec, leaf: _tensor(spec, leaf), specs, given)
    except (ValueError, TypeError) as error:
        raise UsageError(f"export: samples[{name!r}] does not fit the function's inputs {specs}: {error}") from error


def _positional(specs: Sequence, sample: Any) -> tuple:
    if len(specs) == 1:
        return (sample,)
    if isinstance(sample, Mapping):
        return tuple(sample[spec.name] for spec in specs)
    return tuple(sample)


def _tensor(spec: Any, leaf: Any) -> Any:
    import tensorflow as tf

    tensor = tf.constant(leaf, spec.dtype)
    if not spec.shape.is_compatible_with(tensor.shape):
        raise ValueError(f"shape {tuple(tensor.shape)} where {spec.shape} is expected")
    return tensor


def _made_up(spec: Any, name: str) -> Any:
    import tensorflow as tf

    dtype = spec.dtype.as_numpy_dtype
    if spec.dtype == tf.string or spec.shape.rank is None:
        raise UsageError(
            f"export: {name!r} takes {spec}, of which no batch can be made up to compare answers with: pass one, "
            f"samples={{{name!r}: …}}"
        )
    shape = [size or (_OPEN if i else _BATCH) for i, size in enumerate(spec.shape)]
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=shape) if spec.dtype.is_floating else generator.integers(0, 2, shape)
    return tf.constant(numbers.astype(dtype))


def live(function: Any, args: tuple, model: keras.Model) -> Outputs:
    """Returns the answer of a module's function as it is now, run eagerly; the model stays as it was."""
    before = [keras.ops.convert_to_numpy(v.value).copy() for v in model.non_trainable_variables]
    try:
        with _eagerly():
            return _by_name(function(*args))
    finally:
        for variable, value in zip(model.non_trainable_variables, before, strict=True):
            variable.assign(value)


def loaded(directory: Path, calls: Mapping[str, tuple[Any, tuple]]) -> dict[str, Outputs]:
    """Returns the answers of a SavedModel.

    Args:
      directory: The SavedModel.
      calls: For each signature, the concrete function it was written from and the arguments to call it with.
    """
    import tensorflow as tf

    with tensorflow_files.quiet():
        model = tf.saved_model.load(str(directory))
    answers = {}
    for key, (concrete, args) in calls.items():
        names = [spec.name for spec in tf.nest.flatten(concrete.structured_input_signature[0])]
        outputs = model.signatures[key](**dict(zip(names, tf.nest.flatten(args), strict=True)))
        answers[key] = {name: np.asarray(value) for name, value in outputs.items()}
    return answers


def _by_name(outputs: Any) -> Outputs:
    """Returns outputs under the names that a signature gives them."""
    if not isinstance(outputs, Mapping):
        listed = outputs if isinstance(outputs, list | tuple) else [outputs]
        outputs = {f"output_{index}": output for index, output in enumerate(listed)}
    nested = [str(name) for name, output in outputs.items() if isinstance(output, Mapping | list | tuple)]
    if nested:
        raise UsageError(f"export: a signature returns tensors by name; {', '.join(nested)} holds several: name each")
    return {str(name): np.asarray(output) for name, output in outputs.items()}


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Inside, functions of TensorFlow run line by line: on JAX the model then answers itself, not its conversion."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
