"""Support for training loops that users write themselves (`StandardTrainer` and others) on TensorFlow."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import keras

from everstep.data import nest


def can_compile(dataset: Any) -> bool:
    """Returns whether steps over the data can be compiled: only TensorFlow compiles steps that read its iterators."""
    if keras.backend.backend() != "tensorflow":
        return False
    tf = importlib.import_module("tensorflow")
    known = (tf.data.Dataset, tf.distribute.DistributedDataset)
    return all(isinstance(leaf, known) for leaf in nest.flatten(dataset))


def compiled(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the compiled form of a step that takes an iterator."""
    return importlib.import_module("tensorflow").function(step)


def compiled_loop(step: Callable[[Any], Any]) -> Callable[[Any, int], None]:
    """Returns a compiled loop over a step; it takes an iterator and a number of steps."""
    tf = importlib.import_module("tensorflow")

    def loop(iterator: Any, num_steps: Any) -> None:
        for _ in tf.range(num_steps):  # autograph turns it into a loop of the graph
            step(iterator)

    compiled = tf.function(loop)
    return lambda iterator, num_steps: compiled(iterator, tf.constant(num_steps, tf.int32))


def ends() -> tuple[type[BaseException], ...]:
    """Returns the exceptions that iterators raise at their end."""
    if keras.backend.backend() != "tensorflow":
        return (StopIteration,)
    return (StopIteration, importlib.import_module("tensorflow").errors.OutOfRangeError)


def tensorflow_variables(value: Any) -> dict[str, Any]:
    """Returns the `tf.Variable`s of a value that is one, or a `tf.Module`, by the suffix of their names."""
    tf = sys.modules.get("tensorflow")
    if tf is None or isinstance(value, keras.Layer | keras.Metric | keras.Optimizer):
        return {}
    if isinstance(value, tf.Variable):
        return {"": value}
    return {f"/{i}": v for i, v in enumerate(value.variables)} if isinstance(value, tf.Module) else {}
