"""`Classifier`: the layer from an embedding to a logit per class. It knows the names of its classes."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.errors import UsageError

_TINY = 1e-12


def unit(vectors: Any, axis: int = -1) -> Any:
    """Returns vectors of length one; one of zeros stays as it is, and so does its gradient."""
    return vectors * ops.rsqrt(ops.maximum(ops.sum(ops.square(vectors), axis=axis, keepdims=True), _TINY))


def fit_width(embedding: Any, width: int) -> Any:
    """Returns embeddings (batch, any) as (batch, width): the first components, or with zeros behind.

    Lengths are not kept: whoever compares directions normalises afterwards.
    """
    own = embedding.shape[-1]
    return embedding[:, :width] if own >= width else ops.pad(embedding, [[0, 0], [0, width - own]])


@keras.saving.register_keras_serializable("everstep")
class Classifier(keras.layers.Layer):
    """Tells classes apart by the direction of an embedding: `scale * cosine(embedding, column of the kernel)`.

        logits = Classifier(["cat", "dog"])(embedding)

    It computes in float32 whatever the precision around it.

    Args:
      class_names: The classes, in the order of the logits; a later model finds them by name.
      normalize: Whether lengths are left out. Without, it is a plain linear layer with a bias, and `scale` is unused.
      scale: What the cosines are multiplied by: without it a softmax could not become sure of anything.
    """

    def __init__(self, class_names: Sequence[str], normalize: bool = True, scale: float = 16.0, **kwargs: Any) -> None:
        super().__init__(**{"name": "classifier", "dtype": "float32", **kwargs})
        self.class_names = [str(name) for name in class_names]
        self.normalize, self.scale = bool(normalize), float(scale)
        if len(set(self.class_names)) != len(self.class_names) or not self.class_names:
            raise UsageError(f"class_names: received {self.class_names}; name at least one class, each once")

    def build(self, input_shape: Any) -> None:
        """Makes the kernel, one column per class."""
        size, count = int(input_shape[-1]), len(self.class_names)
        self.kernel = self.add_weight(name="kernel", shape=(size, count), initializer="glorot_uniform")
        self.bias = None if self.normalize else self.add_weight(name="bias", shape=(count,), initializer="zeros")

    def call(self, embedding: Any) -> Any:
        """Returns the logits."""
        if self.normalize:
            return self.scale * ops.matmul(unit(embedding), unit(self.kernel, axis=0))
        return ops.matmul(embedding, self.kernel) + self.bias

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns one logit per class."""
        return (*input_shape[:-1], len(self.class_names))

    def get_config(self) -> dict[str, Any]:
        """Returns what is needed to make it again."""
        own = {"class_names": self.class_names, "normalize": self.normalize, "scale": self.scale}
        return {**super().get_config(), **own}
