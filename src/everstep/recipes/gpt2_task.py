"""The model, task and data of `text/gpt2_124m` and `text/gpt2_tiny`.

The model is made of Keras layers only, so its `.keras` file loads wherever Keras is installed. What makes it fast:

- Each block is a model of its own, so that `runtime.remat` can recompute whole blocks.
- Attention is `keras.ops.dot_product_attention` with `is_causal`, without dropout and without mask: in half precision
  on a GPU that is flash attention, by cuDNN on JAX.
- The last layer computes in the type of the others. A `ReversibleEmbedding` without `reverse_dtype` multiplies in
  float32.
- Training computes no metric: an accuracy would read all logits again. The perplexity is e to the power of the loss.

Where several documents share a row (`packing`), the same layers get a mask, and the position of each token in its
document. The variables are those of the model without packing.
"""

import functools
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from everstep.data.formats import NumpyFile
from everstep.data.text import POSITIONS, SEGMENTS, TOKENS, Tokenizer, make_tokenizer, text_stream
from everstep.errors import UsageError
from everstep.recipes.gpt2_config import GPT2ModelConfig
from everstep.task import GenerationConfig, LanguageModelTask, continue_tokens, host_logits

FOLLOWS_RULE = 0.75
"""The share of generated tokens that follow from the one before."""

PACKED = (TOKENS, SEGMENTS, POSITIONS)
"""What the model is given where several documents share a row."""


def gpt2(config: GPT2ModelConfig, packed: bool = False) -> keras.Model:
    """Returns a model from tokens (batch, context) to logits (batch, context, vocabulary).

    Args:
      config: The shape of the model.
      packed: Whether several documents share a row: the model takes a dict of `token_ids`, `segment_ids` and
        `positions`, each (batch, context), and a token sees only tokens of its own document.
    """
    inputs = {name: keras.Input((config.context,), dtype="int32", name=name) for name in PACKED} if packed else None
    tokens = inputs[TOKENS] if inputs else keras.Input((config.context,), dtype="int32", name="tokens")
    embedding = layers.ReversibleEmbedding(
        config.vocabulary,
        config.width,
        embeddings_initializer=_normal(),
        reverse_dtype=keras.config.dtype_policy().compute_dtype,
        name="token_embedding",
    )
    positions = layers.Embedding(
        config.context, config.width, embeddings_initializer=_normal(), name="position_embedding"
    )
    if inputs:
        x, mask = embedding(tokens) + positions(inputs[POSITIONS]), _same_document(inputs[SEGMENTS])
    else:
        zeros = ops.max(ops.zeros_like(tokens), axis=0, keepdims=True)  # one row: it is broadcast to the others
        x, mask = embedding(tokens) + positions(zeros + ops.arange(config.context, dtype="int32")), None
    for index in range(config.layers):
        block = _block(config, f"block_{index}", packed)
        x = block(x) if mask is None else block([x, mask])
    logits = embedding(_normed(x, config, "final_norm"), reverse=True)
    return keras.Model(inputs or tokens, logits, name="gpt2")


def _same_document(segments: Any) -> Any:
    """Returns which tokens each token sees, (batch, 1, context, context): those of its document up to itself."""
    length = segments.shape[1]
    same = ops.equal(ops.expand_dims(segments, 2), ops.expand_dims(segments, 1))
    places = ops.arange(length, dtype="int32")
    earlier = ops.greater_equal(ops.expand_dims(places, 1), ops.expand_dims(places, 0))
    return ops.expand_dims(ops.logical_and(same, earlier), 1)


def _block(config: GPT2ModelConfig, name: str, masked: bool) -> keras.Model:
    """Returns one block as a model: attention and feed-forward, both added to their input."""
    x = inputs = _features(config.width, config)
    mask = keras.Input((1, config.context, config.context), dtype="bool", name="mask") if masked else None
    x = x + _dropped(_attention(_normed(x, config, "attention_norm"), config, mask), config)
    hidden = _dense(4 * config.width, config, "feed_forward")(_normed(x, config, "feed_forward_norm"))
    hidden = _gelu(4 * config.width, config)(hidden)
    x = x + _dropped(_dense(config.width, config, "feed_forward_output", residual=True)(hidden), config)
    return keras.Model(inputs if mask is None else [inputs, mask], x, name=name)


def _features(width: int, config: GPT2ModelConfig) -> Any:
    """Returns the input of a block, in the type that layers compute in; by default it would be cast to float32."""
    return keras.Input((config.context, width), dtype=keras.config.dtype_policy().compute_dtype)


def _attention(x: Any, config: GPT2ModelConfig, mask: Any = None) -> Any:
    """Returns causal attention; each token sees itself and those before it, or those of the mask."""
    shape = (config.context, config.heads, config.width // config.heads)
    if config.fused_qkv:
        parts = ops.split(_dense(3 * config.width, config, "query_key_value")(x), 3, axis=-1)
    else:
        parts = [_dense(config.width, config, name)(x) for name in ("query", "key", "value")]
    query, key, value = (layers.Reshape(shape)(part) for part in parts)
    mixed = ops.dot_product_attention(query, key, value, mask=mask, is_causal=mask is None)
    joined = layers.Reshape((config.context, config.width))(mixed)
    return _dense(config.width, config, "attention_output", residual=True)(joined)


def _gelu(width: int, config: GPT2ModelConfig) -> keras.Model:
    """Returns the activation as a model, so that `runtime.remat=gelu` can recompute what is inside it."""
    inputs = _features(width, config)
    return keras.Model(inputs, keras.activations.gelu(inputs, approximate=True), name="gelu")


def _dense(units: int, config: GPT2ModelConfig, name: str, residual: bool = False) -> keras.Layer:
    """Returns a dense layer; those that add to their input start smaller, so that sums over blocks stay of one size."""
    kernel = _normal(1 / np.sqrt(2 * config.layers) if residual else 1.0)
    return layers.Dense(units, use_bias=config.bias, kernel_initializer=kernel, name=name)


def _normal(scale: float = 1.0) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02 * float(scale))


def _normed(x: Any, config: GPT2ModelConfig, name: str) -> Any:
    return layers.LayerNormalization(epsilon=1e-5, center=config.bias, name=name)(x)


def _dropped(x: Any, config: GPT2ModelConfig) -> Any:
    return layers.Dropout(config.dropout)(x) if config.dropout else x


class GPT2Task(LanguageModelTask):
    """Predicts the next token of each sequence."""

    def build_model(self) -> keras.Model:
        """Returns the model."""
        return gpt2(self.task_config.model, packed=self.packed)

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns no metric for training, and the perplexity for evaluation."""
        return [] if training else super().build_metrics(training)[-1:]

    @property
    def packed(self) -> bool:
        """Whether several documents may share a row."""
        return bool(self.task_config.train_data.packing or self.task_config.validation_data.packing)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns tokens and next tokens, (sequences, context) both; or the stream of text files."""
        config, shape = self.task_config, self.task_config.model
        named = params.input_path or params.dataset
        if not named and config.shipped_text:
            params = params.replace(input_path=_shipped(config.shipped_text, bool(params.is_training)))
        if params.dataset or (params.input_path and not _is_token_file(params.input_path)):
            tokenizer = make_tokenizer(params.tokenizer)
            inputs = PACKED if self.packed else TOKENS
            return text_stream(params, tokenizer, context=shape.context, vocabulary=shape.vocabulary, inputs=inputs)
        if params.input_path:
            rows = read_tokens(params.input_path, shape.context)
        else:
            count = config.generated_sequences if params.is_training else max(1, config.generated_sequences // 8)
            rows = generate_tokens(count, shape.context, shape.vocabulary, seed=0 if params.is_training else 1)
        return _as_packed(rows[:, :-1]) if self.packed else rows[:, :-1], rows[:, 1:]

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the training data; None if that consists of tokens."""
        return make_tokenizer(name) if (name := self.task_config.train_data.tokenizer) else None

    @property
    def generates(self) -> bool:
        """Whether the data is text, so that the model can continue texts."""
        return bool(self.task_config.train_data.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        tokenizer = self._tokenizer
        return super().encode(text) if tokenizer is None else tokenizer.encode([text])[0].tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        tokenizer = self._tokenizer
        return super().decode(tokens) if tokenizer is None else tokenizer.decode(tokens)

    @property
    def stop_token(self) -> int | None:
        """The token that ends a text."""
        return None if self._tokenizer is None else self._tokenizer.end

    def continue_prompts(
        self, model: keras.Model, prompts: Sequence[Sequence[int]], config: GenerationConfig | None = None
    ) -> list[list[int]]:
        """Returns the tokens that the model writes after the tokens of each prompt."""

        def logits_of(rows: np.ndarray) -> np.ndarray:
            return host_logits(model, _as_packed(rows) if self.packed else rows)

        context = self.task_config.model.context
        return continue_tokens(logits_of, prompts, context, config or self.generation, self.stop_token)


def _as_packed(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows of one document each as a packed model takes them."""
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype="int32"), tokens.shape)
    return {TOKENS: tokens, SEGMENTS: np.ones_like(tokens), POSITIONS: np.ascontiguousarray(positions)}


def _shipped(name: str, training: bool) -> str:
    """Returns the file of a text that comes with everstep."""
    part = "train" if training else "validation"
    return str(resources.files("everstep.recipes").joinpath(f"data/{name}-{part}.jsonl.xz"))


def _is_token_file(path: Any) -> bool:
    return isinstance(path, str) and Path(path).suffix in (".npy", ".bin")


def read_tokens(path: Any, context: int) -> np.ndarray:
    """Returns the tokens of a file as sequences of `context` tokens and the one after them, int32.

    Raises:
      UsageError: It is not one `.npy` or `.bin` file, or too short for one sequence.
    """
    suffix = Path(path).suffix if isinstance(path, str) else ""
    if suffix not in (".npy", ".bin"):
        text = "expected one file of tokens: .npy, or .bin of uint16"
        raise UsageError(text, key="task.train_data.input_path", received=path)
    try:
        tokens = np.memmap(path, "uint16", "r") if suffix == ".bin" else _stored_tokens(path)
    except (OSError, ValueError) as error:  # also what the reader of .npy files raises
        raise UsageError(f"cannot be read: {error}", key="task.train_data.input_path", received=path) from error
    count = (len(tokens) - 1) // context
    if count < 1:
        text = f"has {len(tokens)} tokens, too few for a sequence of {context} and the next one"
        raise UsageError(text, key="task.train_data.input_path", received=path)
    starts = np.arange(count)[:, None] * context
    return tokens[starts + np.arange(context + 1)].astype("int32")


def _stored_tokens(path: str) -> np.ndarray:
    with NumpyFile(path) as file:
        return file.read(mapped=True).reshape(-1)


def generate_tokens(sequences: int, context: int, vocabulary: int, seed: int) -> np.ndarray:
    """Returns sequences of `context` tokens and the one after them, int32; many follow from the one before."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, vocabulary, (sequences, context + 1), dtype="int32")
    follows = generator.random((sequences, context)) < FOLLOWS_RULE
    for column in range(context):
        rows[:, column + 1] = np.where(follows[:, column], (rows[:, column] * 5 + 7) % vocabulary, rows[:, column + 1])
    return rows
