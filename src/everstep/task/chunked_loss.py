"""The cross-entropy of a language model, computed in chunks of tokens, so that its logits are never stored.

The logits of 32 × 1024 tokens over a vocabulary of 50,304 take 6.6 GB in float32; their gradient takes as much again.
Here the last layer of the model is part of the loss. For one chunk of tokens after the other it computes logits, loss
and gradients, and keeps only the sum of the losses, the gradient of the features of each token, and the sum of the
gradients of the weights. The products are the same as in the plain loss, and none is computed twice.

    body, head = split_model(model)
    loss = chunked_cross_entropy(body(tokens, training=True), *head.weights(), labels, weights, chunk_tokens=4096)
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import layers, ops

from everstep.errors import UsageError
from everstep.task.grad import quick_if_finite, scan

KEY = "task.loss_chunk_tokens"
SAMPLED = 512
"""How many logits of a token are looked at for a first estimate of the largest."""


class Head(NamedTuple):
    """The last layer of a model, from the features of a token to a logit per token of the vocabulary."""

    layer: keras.Layer

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        return int(self.layer.input_dim if isinstance(self.layer, layers.Embedding) else self.layer.units)

    def weights(self) -> tuple[Any, Any]:
        """Returns the kernel (width, vocabulary) and the bias, or None, as they are in the current scope."""
        if isinstance(self.layer, layers.ReversibleEmbedding):
            tied = self.layer.tie_weights
            return ops.transpose(self.layer.embeddings) if tied else self.layer.reverse_embeddings.value, None
        return self.layer.kernel.value, None if self.layer.bias is None else self.layer.bias.value

    @property
    def dtype(self) -> str:
        """The type in which logits are computed."""
        return str(getattr(self.layer, "reverse_dtype", None) or self.layer.compute_dtype)


_split: "weakref.WeakKeyDictionary[keras.Model, tuple[keras.Model, Head]]" = weakref.WeakKeyDictionary()


def split_model(model: keras.Model) -> tuple[keras.Model, Head]:
    """Returns the model without its last layer, with the same variables, and that layer.

    Raises:
      UsageError: The last layer is neither a `Dense` without activation nor a `ReversibleEmbedding` in reverse.
    """
    if model not in _split:
        _split[model] = _split_at_last_layer(model)
    return _split[model]


def _split_at_last_layer(model: keras.Model) -> tuple[keras.Model, Head]:
    outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
    if len(outputs) != 1:
        raise _cannot_split("the model must be a functional one with one output")
    history = outputs[0]._keras_history
    layer = history.operation
    called = layer._inbound_nodes[history.node_index].arguments
    is_reverse = isinstance(layer, layers.ReversibleEmbedding) and bool(called.kwargs.get("reverse"))
    is_linear = isinstance(layer, layers.Dense) and layer.activation is keras.activations.linear
    if not (is_reverse or is_linear):
        raise _cannot_split(f"its last layer is {type(layer).__name__} {layer.name!r}")
    if getattr(layer, "quantization_mode", None) or getattr(layer, "logit_soft_cap", None):
        raise _cannot_split(f"the logits of {layer.name!r} are quantized or capped")
    return keras.Model(model.input, called.args[0], name=f"{model.name}_body"), Head(layer)


def _cannot_split(reason: str) -> UsageError:
    remedy = "end the model with a Dense without activation or a ReversibleEmbedding in reverse, or remove the key"
    return UsageError(f"logits cannot be computed in chunks: {reason}", key=KEY, remedy=remedy)


def chunked_cross_entropy(
    features: Any, kernel: Any, bias: Any, labels: Any, weights: Any, chunk_tokens: int, training: bool = True
) -> Any:
    """Returns the weighted mean of the cross-entropies of tokens.

    Args:
      features: The features of all tokens, (…, width), in the type in which logits are to be computed.
      kernel: The weights of the last layer, (width, vocabulary).
      bias: Its bias, (vocabulary,), or None.
      labels: The class of each token, (…); any valid class where the weight is 0.
      weights: The weight of each token, (…), float32.
      chunk_tokens: The number of tokens of a chunk.
      training: Whether gradients are needed; they are computed together with the value.
    """
    width = features.shape[-1]
    features = ops.reshape(features, (-1, width))
    labels, weights = ops.reshape(labels, (-1,)), ops.reshape(ops.cast(weights, "float32"), (-1,))
    total = ops.maximum(ops.sum(weights), 1e-9)
    biases = () if bias is None else (bias,)
    if not training:
        return _sums(features, kernel, biases, labels, weights, chunk_tokens, gradients=False)[0] / total

    @ops.custom_gradient
    def summed(features: Any, kernel: Any, *biases: Any) -> Any:
        loss, *gradients = _sums(features, kernel, biases, labels, weights, chunk_tokens, gradients=True)

        def scaled(*args: Any, upstream: Any = None) -> tuple[Any, ...]:
            scale = ops.cast(args[0] if upstream is None else upstream, "float32")
            sources = (features, kernel, *biases)
            return tuple(
                ops.cast(ops.cast(gradient, "float32") * scale, source.dtype)
                for gradient, source in zip(gradients, sources, strict=True)
            )

        return loss, scaled

    return summed(features, ops.convert_to_tensor(kernel), *map(ops.convert_to_tensor, biases)) / total


def _sums(
    features: Any, kernel: Any, biases: tuple, labels: Any, weights: Any, chunk_tokens: int, gradients: bool
) -> list[Any]:
    """Returns the sum of the weighted losses and, if wanted, its gradients by features, kernel and bias."""
    tokens, width = features.shape
    size = min(chunk_tokens, tokens)
    missing = -tokens % size
    features, labels, weights = _padded(features, missing), _padded(labels, missing), _padded(weights, missing)
    cast_kernel = ops.cast(kernel, features.dtype)
    sums = [ops.zeros((), "float32")]
    if gradients:
        sums += [ops.zeros(each.shape, "float32") for each in (kernel, *biases)]

    def add(sums: list[Any], chunk: tuple[Any, Any, Any]) -> tuple[list[Any], Any]:
        loss, *found = _chunk(chunk, cast_kernel, biases, gradients)
        added = [total + ops.cast(part, "float32") for total, part in zip(sums, (loss, *found[1:]), strict=True)]
        return added, found[0] if gradients else loss

    chunks = (features, labels, weights)
    if tokens == size:
        sums, by_features = add(sums, chunks)
    else:
        parts = [ops.reshape(each, (-1, size, *each.shape[1:])) for each in chunks]
        sums, by_features = scan(add, sums, tuple(parts))
    return [sums[0], ops.reshape(by_features, (-1, width))[:tokens], *sums[1:]] if gradients else [sums[0]]


def _chunk(chunk: tuple[Any, Any, Any], kernel: Any, biases: tuple, gradients: bool) -> list[Any]:
    """Returns the loss of a chunk and its gradients by features, kernel and bias; the kernel is in their type.

    Exponentials are taken of what logits exceed a shift by, the largest logit of the token. To find that takes a pass
    over all logits. On JAX the shift is first the largest of some logits and that of the label. If a logit exceeds it
    by more than 88, which happens only to tokens with such a loss, its exponential overflows and the loss is not
    finite: everything is computed again, with the exact shift.
    """

    def computed(shift_of: Callable[[Any, Any], Any]) -> list[Any]:
        return _computed(chunk, kernel, biases, gradients, shift_of)

    if kernel.shape[-1] <= SAMPLED or keras.backend.standardize_dtype(kernel.dtype) == "float16":
        return computed(_largest)
    return quick_if_finite(lambda: computed(_largest_of_some), lambda: computed(_largest))


def _largest(logits: Any, of_label: Any) -> Any:
    return ops.max(logits, axis=-1, keepdims=True)


def _largest_of_some(logits: Any, of_label: Any) -> Any:
    return ops.maximum(ops.max(logits[:, :SAMPLED], axis=-1, keepdims=True), of_label)


def _computed(
    chunk: tuple[Any, Any, Any], kernel: Any, biases: tuple, gradients: bool, shift_of: Callable[[Any, Any], Any]
) -> list[Any]:
    """Returns what `_chunk` returns, if no logit exceeds `shift_of(logits, logit of the label)` by more than 88.

    Logits stay in the type of the features. Only what is computed from them is in float32, and a compiler needs not
    store it: the shift and the logit of the label are taken before they are cast, because a compiler would store the
    cast logits for a maximum of them.

    The gradient by the logits, `weight * (softmax - is_label)`, is not stored either. It is computed by the pass that
    sums the exponentials, up to a factor per token: `exponential - is_label * total`. The factor, `weight / total`, is
    applied to the features and to the products. So the logits are read once or twice, not three times.
    """
    features, labels, weights = chunk
    logits = ops.matmul(features, kernel)
    if biases:
        logits = logits + ops.cast(biases[0], logits.dtype)
    labels = ops.expand_dims(ops.cast(labels, "int32"), -1)
    of_label = ops.take_along_axis(logits, labels, axis=-1)
    shift, of_label = ops.cast(shift_of(logits, of_label), "float32"), ops.cast(of_label, "float32")
    exponentials = ops.exp(ops.cast(logits, "float32") - shift)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    log_sum = shift + ops.log(total)
    loss = ops.sum((log_sum - of_label)[:, 0] * weights)
    if not gradients:
        return [loss]
    if keras.backend.standardize_dtype(features.dtype) == "float16":  # cannot represent the products with a total
        exponentials, shift, total = ops.exp(ops.cast(logits, "float32") - log_sum), log_sum, ops.ones_like(total)
    at_labels = ops.stack([ops.arange(features.shape[0], dtype="int32"), labels[:, 0]], axis=-1)
    of_labels = ops.cast((ops.exp(of_label - shift) - total)[:, 0], features.dtype)
    by_logits = ops.scatter_update(ops.cast(exponentials, features.dtype), at_labels, of_labels)
    factor = weights[:, None] / total
    by_features = ops.cast(ops.cast(ops.matmul(by_logits, ops.transpose(kernel)), "float32") * factor, features.dtype)
    scaled = ops.cast(ops.cast(features, "float32") * factor, features.dtype)
    by_kernel = ops.matmul(ops.transpose(scaled), by_logits)
    by_bias = [ops.sum(ops.cast(by_logits, "float32") * factor, axis=0)] if biases else []
    return [loss, by_features, by_kernel, *by_bias]


def _padded(array: Any, missing: int) -> Any:
    """Returns an array with zeros appended; tokens with a weight of 0 do not count."""
    return ops.pad(array, [[0, missing], *[[0, 0]] * (len(array.shape) - 1)]) if missing else array
