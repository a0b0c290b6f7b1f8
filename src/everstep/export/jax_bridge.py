"""Keras code of the JAX backend, called with TensorFlow's tensors.

A SavedModel is TensorFlow's format on every backend. On the TensorFlow backend its functions are called as they are.
On JAX a function may be Keras code, which is saved as a compiled program, or TensorFlow code (decoding images,
splitting text), which is saved unchanged; the first call shows which of the two it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from everstep.errors import UsageError
from everstep.export import saved_model
from everstep.export.open_sizes import Shape, own_symbols, shared_symbols

Part = Callable[[Any], Any]


class Bridge:
    """Wraps functions so that TensorFlow can call them, eagerly (live) and while it traces (for the SavedModel).

    Attributes:
      variables: Pairs of Keras variables and their counterparts in the SavedModel; empty on TensorFlow, where they are
        the same.
    """

    def __init__(self) -> None:
        self.variables: list[tuple[keras.Variable, Any]] = []

    def part(self, fn: Part, keras_only: bool = False) -> Part:
        """Returns `fn` as a function of TensorFlow's tensors, in any nesting.

        Args:
          fn: The function.
          keras_only: Whether it is certainly Keras code, and need not be tried as TensorFlow code.
        """
        if keras.backend.backend() != "jax":
            return fn
        saved_model.require_support()
        import tensorflow as tf

        # Otherwise AutoGraph would convert all of JAX, if a user's tf.function calls this.
        return tf.autograph.experimental.do_not_convert(lambda inputs: self._call(fn, inputs, keras_only))

    def _call(self, fn: Part, inputs: Any, keras_only: bool) -> Any:
        import tensorflow as tf

        as_keras = self._live if tf.executing_eagerly() else self._converted
        tensors = tf.nest.map_structure(tf.convert_to_tensor, inputs)
        if keras_only:
            return as_keras(fn, tensors)
        if any(tensor.dtype == tf.string for tensor in tf.nest.flatten(tensors)):
            return fn(tensors)
        try:
            return as_keras(fn, tensors)
        except Exception as keras_error:  # TensorFlow's functions raise many kinds for JAX's arrays
            try:
                return fn(tensors)
            except Exception as tensorflow_error:
                name = getattr(fn, "__qualname__", None) or getattr(fn, "name", None) or repr(fn)
                raise UsageError(
                    f"cannot be exported: as Keras code it fails with {_brief(keras_error)}; as TensorFlow code it "
                    f"fails with {_brief(tensorflow_error)}",
                    key=name,
                ) from keras_error

    def _live(self, fn: Part, inputs: Any) -> Any:
        import tensorflow as tf

        outputs = fn(tf.nest.map_structure(lambda tensor: tensor.numpy(), inputs))
        return keras.tree.map_structure(lambda output: tf.constant(np.asarray(output)), outputs)

    def _converted(self, fn: Part, inputs: Any) -> Any:
        import tensorflow as tf
        from jax.experimental import jax2tf

        held = [variable for variable, _ in self.variables]
        stand_ins, shapes = [stand_in for _, stand_in in self.variables], _shapes(inputs)

        def call(symbols: list[str]) -> tuple[Any, dict[str, Any]]:
            of_all = own_symbols([v.shape for v in held]), tf.nest.pack_sequence_as(inputs, symbols)
            program = jax2tf.convert(_stateless(fn, held), polymorphic_shapes=of_all, **saved_model.jax2tf_options())
            return program(stand_ins, inputs)

        try:
            outputs, changed = call(own_symbols(shapes))
        except Exception:  # JAX and Keras raise many kinds where a model needs two open sizes to be equal
            if sum(size is None for shape in shapes for size in shape[1:]) < 2:
                raise
            outputs, changed = call(shared_symbols(shapes))
        for position, value in changed.items():
            stand_in = self.variables[int(position)][1]
            stand_in.assign(tf.cast(value, stand_in.dtype))
        return outputs


def _stateless(fn: Part, held: Sequence[keras.Variable]) -> Callable[[list, Any], tuple[Any, dict[str, Any]]]:
    """Returns `fn` as a function of the variables and the inputs; it also returns changed variables by position."""

    def stateless(values: list, inputs: Any) -> tuple[Any, dict[str, Any]]:
        with keras.StatelessScope(list(zip(held, values, strict=True))) as scope:
            before = [scope.get_current_value(variable) for variable in held]
            outputs = fn(inputs)
            after = [scope.get_current_value(variable) for variable in held]
        changed = {str(i): new for i, (old, new) in enumerate(zip(before, after, strict=True)) if new is not old}
        return outputs, changed

    return stateless


def _shapes(inputs: Any) -> list[Shape]:
    """Returns the shapes of tensors, flat; None for open sizes.

    Raises:
      UsageError: The rank of one is unknown.
    """
    import tensorflow as tf

    tensors = tf.nest.flatten(inputs)
    for tensor in tensors:
        if tensor.shape.rank is None:
            raise UsageError(
                f"the model would get a tensor of unknown rank ({tensor.name})",
                key="preprocessor",
                remedy="set its shape with tf.ensure_shape or tensor.set_shape",
            )
    return [tensor.shape.as_list() for tensor in tensors]


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
