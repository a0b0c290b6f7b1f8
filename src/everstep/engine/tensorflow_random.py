"""Random numbers of a step on TensorFlow: all of them follow from seeds that are part of the state.

`tf.random` keeps its position inside its operations, where no checkpoint reaches it: a resumed run would draw other
numbers. While steps are traced, its functions draw from a seed generator instead, which is saved with the state.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from everstep.grad import current_share


class StepRandom:
    """Where the steps of an engine draw what they ask `tf.random` for.

    Attributes:
      generator: What is saved of it; None as long as no step has drawn anything.
    """

    def __init__(self) -> None:
        self.generator: keras.random.SeedGenerator | None = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside the block `tf.random` draws from the generator, in this thread and in those of its replicas."""
        thread = threading.get_ident()
        with contextlib.ExitStack() as stack:
            for name, draw in _DRAWS.items():
                original = getattr(gen_random_ops, name)
                stack.callback(setattr, gen_random_ops, name, original)
                setattr(gen_random_ops, name, self._replaced(thread, original, draw))
            yield

    def _replaced(self, thread: int, original: Callable[..., Any], draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, seed: int = 0, seed2: int = 0, **kwargs: Any) -> Any:
            if threading.get_ident() != thread and current_share() is None:  # data that is read meanwhile
                return original(*args, seed=seed, seed2=seed2, **kwargs)
            kwargs.pop("name", None)
            return draw(self._next(), *args, **kwargs)

        return drawn

    def _next(self) -> Any:
        if self.generator is None:
            with tf.init_scope():
                self.generator = keras.random.SeedGenerator(0)
        return tf.cast(self.generator.next(), "int32")


_DRAWS: dict[str, Callable[..., Any]] = {
    "random_uniform": lambda seed, shape, dtype: tf.random.stateless_uniform(shape, seed, dtype=dtype),
    "random_uniform_int": lambda seed, shape, minval, maxval: tf.random.stateless_uniform(
        shape, seed, minval, maxval, dtype=tf.as_dtype(getattr(minval, "dtype", tf.int32))
    ),
    "random_standard_normal": lambda seed, shape, dtype: tf.random.stateless_normal(shape, seed, dtype=dtype),
    "truncated_normal": lambda seed, shape, dtype: tf.random.stateless_truncated_normal(shape, seed, dtype=dtype),
    "random_shuffle": lambda seed, value: tf.random.experimental.stateless_shuffle(value, seed),
    "multinomial": lambda seed, logits, num_samples, output_dtype=tf.int64: tf.random.stateless_categorical(
        logits, num_samples, seed, dtype=output_dtype
    ),
}
"""Each function of `tf.random` that keeps a position, and the one without that stands in for it."""
