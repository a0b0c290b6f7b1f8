"""Compares an exported model with the live one: by their outputs, or by what they would compute."""

import contextlib
import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from everstep.engine import has_accelerator
from everstep.errors import TrainingError

_FULL_PRECISION = 1e-5
_REDUCED_PRECISION = 1e-2


def live_outputs(model: keras.Model, sample: Any) -> list[np.ndarray]:
    """Returns the model's outputs on `sample`, flat, and leaves the model as it was."""
    with unchanged(model.non_trainable_variables):
        return flat_arrays(model(sample, training=False))


@contextlib.contextmanager
def unchanged(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Restores the variables after the block: a call may change counters and random seeds."""
    before = [keras.ops.convert_to_numpy(variable.value).copy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def flat_arrays(outputs: Any) -> list[np.ndarray]:
    """Returns the arrays of a nested structure in the order of `keras.tree`."""
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


def same_program(model: keras.Model, loaded: keras.Model, sample: Any) -> bool:
    """Returns whether two models compute the same from the same weights; False where that cannot be told.

    JAX shows the program of a model without running it. Run as it is, a model has each of its operations compiled:
    an LSTM that was trained for two seconds is called for one and a half.
    """
    if keras.backend.backend() != "jax" or not _same_weights(model, loaded):
        return False
    try:
        return _program(model, sample) == _program(loaded, sample)
    except Exception:  # a model that JAX cannot trace, such as one that converts a tensor to NumPy
        return False


def _same_weights(model: keras.Model, loaded: keras.Model) -> bool:
    pairs = list(zip(model.weights, loaded.weights, strict=False))
    if len(pairs) != len(model.weights) or len(pairs) != len(loaded.weights):
        return False
    arrays = ([keras.ops.convert_to_numpy(weight.value) for weight in pair] for pair in pairs)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in arrays)


def _program(model: keras.Model, sample: Any) -> tuple[str, list[bytes]]:
    """Returns what JAX would compile, as text, and the constants in it; weights are inputs."""
    jax = importlib.import_module("jax")
    weights = model.weights

    def call(values: Sequence[Any], inputs: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
            return model(inputs, training=False)

    traced = jax.make_jaxpr(call)([jax.ShapeDtypeStruct(weight.shape, weight.dtype) for weight in weights], sample)
    return str(traced), [np.asarray(constant).tobytes() for constant in _constants(traced)]


def _constants(traced: Any) -> Iterator[Any]:
    """Yields the arrays that a traced program holds, also those of the programs that its operations call."""
    yield from getattr(traced, "consts", [])
    for equation in getattr(traced, "jaxpr", traced).eqns:
        values = [value if isinstance(value, list | tuple) else [value] for value in equation.params.values()]
        for inner in itertools.chain(*values):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from _constants(inner)


def check_same(
    model: keras.Model, expected: list[np.ndarray], actual: list[np.ndarray], received: str, key: str = "export"
) -> None:
    """Checks the outputs of the loaded export against those of the live model.

    The tolerance is relative to the largest value of an output: 1e-5, or 1e-2 where the arithmetic is less precise
    (half precision; accelerators, which multiply float32 with ten bits).

    Args:
      model: The live model, whose precision decides on the tolerance.
      expected: Its outputs, flat.
      actual: The outputs of the loaded export, flat.
      received: The path or name of the export, for error messages.
      key: What kind of thing that is, for error messages.

    Raises:
      TrainingError: They differ; the message says by how much.
    """
    wanted, got = [a.shape for a in expected], [a.shape for a in actual]
    if wanted != got:
        raise TrainingError(
            f"loads back with outputs of shape {got}, the model's are {wanted}", key=key, received=received
        )
    tolerance = _tolerance(model)
    worst = largest_difference(expected, actual)
    if not worst <= tolerance:
        raise TrainingError(
            f"does not have the outputs of the trained model: they differ by {worst:.2g} of their scale, "
            f"{tolerance:g} is allowed",
            key=key,
            received=received,
            remedy="look for layers whose call depends on Python state",
        )


def largest_difference(expected: list[np.ndarray], actual: list[np.ndarray]) -> float:
    """Returns by how much outputs of the same shapes differ at most, relative to the largest value of each."""
    return max((_difference(a, b) for a, b in zip(expected, actual, strict=True)), default=0.0)


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the largest difference in units of the largest expected value; NaN equals NaN."""
    if expected.dtype.kind in "OSUb":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), actual.astype(wide)
    if not np.array_equal(np.where(np.isfinite(a), 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return float("inf")
    finite = np.isfinite(a)
    scale = np.abs(a[finite]).max(initial=np.finfo(np.float32).tiny)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale)


def _tolerance(model: keras.Model) -> float:
    dtypes = {layer.compute_dtype for layer in (model, *model.layers)}
    reduced = dtypes & {"float16", "bfloat16"} or has_accelerator()
    return _REDUCED_PRECISION if reduced else _FULL_PRECISION
