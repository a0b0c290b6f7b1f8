"""Models with an embedding inside: the `Classifier` on top of it, and how such models are built, found and called."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.errors import UsageError

_TINY = 1e-12


def unit(vectors: Any, axis: int = -1) -> Any:
    """Returns vectors of length one; one of zeros stays as it is, and so does its gradient."""
    return vectors * ops.rsqrt(ops.maximum(ops.sum(ops.square(vectors), axis=axis, keepdims=True), _TINY))


def fit_width(embedding: Any, width: int) -> Any:
    """Returns embeddings (batch, any) as (batch, width): the first components, or with zeros behind.

    Lengths are not kept: to compare directions, normalise afterwards.
    """
    own = embedding.shape[-1]
    return embedding[:, :width] if own >= width else ops.pad(embedding, [[0, 0], [0, width - own]])


@keras.saving.register_keras_serializable("everstep")
class Classifier(keras.layers.Layer):
    """Classifies embeddings by their direction: `scale * cosine(embedding, column of the kernel)`.

        logits = Classifier(["cat", "dog"])(embedding)

    It always computes in float32, also in a model with mixed precision.

    Args:
      class_names: The classes, in the order of the logits; a later model finds them by name.
      normalize: Whether lengths are left out. Without, it is a plain linear layer with a bias, and `scale` is unused.
      scale: The factor from cosines to logits: cosines alone would give an almost uniform softmax.
    """

    def __init__(self, class_names: Sequence[str], normalize: bool = True, scale: float = 16.0, **kwargs: Any) -> None:
        super().__init__(**{"name": "classifier", "dtype": "float32", **kwargs})
        self.class_names = [str(name) for name in class_names]
        self.normalize, self.scale = bool(normalize), float(scale)
        if len(set(self.class_names)) != len(self.class_names) or not self.class_names:
            raise UsageError("expected at least one class, each once", key="class_names", received=self.class_names)

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
        """Returns what is needed to create it again."""
        own = {"class_names": self.class_names, "normalize": self.normalize, "scale": self.scale}
        return {**super().get_config(), **own}


EMBEDDING, LOGITS = "embedding", "logits"

logger = logging.getLogger(__name__)


def with_classifier(
    backbone: keras.Model, class_names: Sequence[str], normalize: bool = True, scale: float = 16.0
) -> keras.Model:
    """Returns a model with the outputs `{"embedding": …, "logits": …}`.

        model = with_classifier(backbone, ["cat", "dog"])

    Args:
      backbone: A functional or sequential model from inputs to embeddings (batch, size).
      class_names: The classes, in the order of the labels.
      normalize: See `Classifier`. Without it, compatibility usually fails, and a warning says so.
      scale: See `Classifier`.

    Raises:
      UsageError: The backbone does not return one vector per sample.
    """
    inputs, returned = symbolic(backbone)
    _vector(returned, backbone)
    if not normalize:
        logger.warning(
            "the classifier is not normalised: embeddings of different models then differ in length, and the new "
            "model is seldom compatible with the old one; classifier.normalize=true is the usual choice"
        )
    fresh = keras.tree.map_structure(lambda one: keras.Input(batch_shape=one.shape, dtype=one.dtype), inputs)
    vector = backbone(fresh)  # as one layer: what is in it is then named after it, in every process alike
    logits = Classifier(class_names, normalize, scale)(vector)
    return keras.Model(fresh, {EMBEDDING: vector, LOGITS: logits}, name="embedding_classifier")


def symbolic(model: keras.Model) -> tuple[Any, Any]:
    """Returns the symbolic inputs and outputs of a functional or sequential model, in their structure.

    Raises:
      UsageError: The model is of another kind, whose parts are unknown.
    """
    if not getattr(model, "inputs", None):
        reason = f"must be functional or sequential, not a {type(model).__name__}"
        raise UsageError(reason, key=f"model {model.name!r}")
    if isinstance(model, keras.Sequential):
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def outputs(y_pred: Any) -> tuple[Any, Any]:
    """Returns embedding and logits of a model's outputs: the dict above, or a pair in that order.

    Raises:
      UsageError: The outputs are something else.
    """
    if isinstance(y_pred, Mapping) and {EMBEDDING, LOGITS} <= set(y_pred):
        return y_pred[EMBEDDING], y_pred[LOGITS]
    if isinstance(y_pred, list | tuple) and len(y_pred) == 2:
        return y_pred[0], y_pred[1]
    raise UsageError(
        f"the model returns {_described(y_pred)}, but both embedding and logits are needed",
        remedy="build it with everstep.bct.with_classifier(backbone, class_names)",
    )


def embedding_part(model: keras.Model) -> keras.Model:
    """Returns the part of a model from its inputs to its embedding, with the same weights.

    That is what its `Classifier` gets, else its output `embedding`, else its only output.

    Raises:
      UsageError: There is no such part, or it is not one vector per sample.
    """
    inputs, found = symbolic(model)
    classifier = find_classifier(model)
    found = found if classifier is None else classifier.input
    if isinstance(found, Mapping):
        if EMBEDDING not in found:
            reason = f"has the outputs {sorted(found)}, none of them {EMBEDDING!r}"
            raise UsageError(reason, key=f"model {model.name!r}")
        found = found[EMBEDDING]
    return keras.Model(inputs, _vector(found, model), name="embedding_part")


def find_classifier(model: keras.Model) -> Classifier | None:
    """Returns the `Classifier` in a model, None where there is none.

    Raises:
      UsageError: There are several.
    """
    found = [layer for layer in model.layers if isinstance(layer, Classifier)]
    if len(found) > 1:
        raise UsageError(f"has {len(found)} classifiers, expected one", key=f"model {model.name!r}")
    return found[0] if found else None


def embed(model: keras.Model, x: Any, batch_size: int = 256) -> np.ndarray:
    """Returns the embeddings of samples, float32 (samples, size), outside training.

    Args:
      model: A model with an embedding in it, as `embedding_part` finds it.
      x: The inputs of the model, one row per sample.
      batch_size: How many are computed at once.

    Raises:
      UsageError: The model cannot read these inputs, or what it returns is not finite.
    """
    return predict_vectors(embedding_part(model), x, batch_size)


def predict_vectors(model: keras.Model, x: Any, batch_size: int) -> np.ndarray:
    """Returns the outputs of a model that only embeds, as `embed` does; called again, it is not compiled again."""
    try:
        vectors = _in_one_shape(model, x, batch_size)
    except (ValueError, TypeError) as error:
        reason = f"cannot read {_described(x)}: {first_line(error)}"
        raise UsageError(reason, key=f"model {model.name!r}") from error
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors)).any(axis=1).sum())
        reason = f"returns embeddings that are not finite for {bad} of {len(vectors)} samples"
        raise UsageError(reason, key=f"model {model.name!r}")
    return vectors


def _in_one_shape(model: keras.Model, x: Any, batch_size: int) -> np.ndarray:
    """Returns the outputs; a short last batch starts earlier, because another shape would be compiled anew."""
    count = len(keras.tree.flatten(x)[0])
    rest = count % batch_size if count > batch_size else 0

    def outputs_of(start: int, stop: int) -> np.ndarray:
        rows = keras.tree.map_structure(lambda leaf: leaf[start:stop], x)
        return np.asarray(model.predict(rows, batch_size=batch_size, verbose=0), "float32")

    if not rest:
        return outputs_of(0, count)
    return np.concatenate([outputs_of(0, count - rest), outputs_of(count - batch_size, count)[-rest:]])


def first_line(error: Exception) -> str:
    """Returns the most informative line of an error; Keras puts it first, or last behind a heading."""
    text = str(error).rpartition("Exception encountered:")[2].strip()
    line = text.partition("\n")[0].partition(" Full object config:")[0].rstrip(". ")
    return line[:300] or type(error).__name__


def _vector(found: Any, model: keras.Model) -> Any:
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != 2 or shape[-1] is None:
        reason = f"returns {_described(found)}, but an embedding is (batch, size)"
        raise UsageError(reason, key=f"model {model.name!r}")
    return found


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {sorted(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"{len(value)} arrays"
    shape = getattr(value, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape is not None else f"a {type(value).__name__}"
