"""Text that a language model writes: prompts from validation data, continued token by token, with the loss of each.

`LanguageModelTask` uses it; a task only says how text becomes tokens and tokens text. A model with a faster way to
generate, such as KerasHub's, replaces `continue_tokens`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from everstep.data import IGNORED
from everstep.errors import UsageError
from everstep.task.config import GenerationConfig

PADDING = 0
"""The token that pads a sequence; it is never a label."""


class Document(NamedTuple):
    """One text of a batch.

    Attributes:
      row: Its row in the batch.
      places: The places of its tokens in the row.
      prompt: The tokens that a model is given.
      expected: The tokens that it should continue with.
    """

    row: int
    places: np.ndarray
    prompt: list[int]
    expected: list[int]


def documents(features: Any, labels: np.ndarray, config: GenerationConfig) -> Iterator[Document]:
    """Yields the texts of a batch, of packed rows each one by itself.

    Where only some labels count, such as those of an answer, the tokens before them are the prompt. Where all count,
    the first tokens are, of a short text half, and as many are expected as a model generates. A text of one token has
    nothing to continue.

    Args:
      features: Tokens (batch, length), or a dict with `token_ids` and, for packed rows, `segment_ids`.
      labels: The next tokens, `IGNORED` where none is wanted.
      config: How long prompts and answers are.
    """
    tokens = np.asarray(tokens_of(features))
    segments = np.asarray(features["segment_ids"]) if _has(features, "segment_ids") else np.ones_like(tokens)
    for row in range(len(tokens)):
        for segment in dict.fromkeys(segments[row].tolist()):
            places = np.flatnonzero(segments[row] == segment)
            counted = np.flatnonzero(labels[row, places] != IGNORED)
            if not len(counted) or (segment == 0 and _has(features, "segment_ids")):
                continue
            first, end = int(counted[0]), int(counted[-1]) + 1
            if first == 0:
                half = (end - 1) // 2  # a short text has something to expect, too
                first = min(config.prompt_tokens - 1, half)
                end = min(end, first + config.max_tokens)
            prompt, expected = tokens[row, places[: first + 1]], labels[row, places[first:end]]
            yield Document(row, places, prompt.tolist(), expected[expected != IGNORED].tolist())


def tokens_of(features: Any) -> Any:
    """Returns the tokens of a batch, which may stand in a dict as `token_ids`."""
    return features["token_ids"] if _has(features, "token_ids") else features


def _has(features: Any, name: str) -> bool:
    return isinstance(features, Mapping) and name in features


def document_loss(logits: np.ndarray, labels: np.ndarray, document: Document) -> float:
    """Returns the mean cross-entropy of the labels of a text that count.

    Args:
      logits: The logits of the document's row, (length, vocabulary).
      labels: The labels of the row.
      document: The text.
    """
    wanted = labels[document.places]
    counts = wanted != IGNORED
    scores = logits[document.places][counts].astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(scores, wanted[counts][:, None], axis=-1)[:, 0]
    return float((np.log(np.exp(scores).sum(axis=-1)) - picked).mean())


def continue_tokens(
    logits_of: Callable[[np.ndarray], np.ndarray],
    prompts: Sequence[Sequence[int]],
    context: int,
    config: GenerationConfig,
    stop: int | None = None,
) -> list[list[int]]:
    """Returns what a model writes after each prompt; the prompt itself is not part of it.

    All prompts are continued together, each until the stop token, `max_tokens`, or the end of the context. Tokens are
    chosen by NumPy from the model's logits, so equal logits give equal texts on every backend. Each call of the model
    sees the whole context, padded at its end.

    Args:
      logits_of: From tokens (prompts, context) to logits (prompts, context, vocabulary).
      prompts: The tokens of each prompt; at least one each.
      context: How many tokens the model sees.
      config: How many tokens to write, and how they are chosen.
      stop: The token that ends a text.

    Raises:
      UsageError: A prompt is empty, or leaves no room in the context.
    """
    for prompt in prompts:
        if not 0 < len(prompt) <= context:
            raise UsageError(
                f"has {len(prompt)} tokens; the model takes from 1 to {context}", key="prompt", remedy="shorten it"
            )
    rows = np.full((len(prompts), context), PADDING, "int32")
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts])
    written: list[list[int]] = [[] for _ in prompts]
    random = np.random.default_rng(config.seed)
    active = np.ones(len(prompts), bool)
    for _ in range(config.max_tokens):
        if not active.any():
            break
        last = np.minimum(lengths, context) - 1
        chosen = choose_tokens(logits_of(rows)[np.arange(len(rows)), last], config, random)
        for index in np.flatnonzero(active).tolist():
            token = int(chosen[index])
            if token == stop:
                active[index] = False
                continue
            written[index].append(token)
            if lengths[index] == context:  # nothing can be read after the end of the context
                active[index] = False
                continue
            rows[index, lengths[index]] = token
            lengths[index] += 1
    return written


def choose_tokens(logits: np.ndarray, config: GenerationConfig, random: np.random.Generator) -> np.ndarray:
    """Returns a token for each row of logits: the most likely one, or one drawn by its probability."""
    scores = np.asarray(logits, np.float64)
    if not config.temperature:
        return scores.argmax(axis=-1)
    scores = scores / config.temperature
    if config.top_k:
        least = np.sort(scores, axis=-1)[:, -min(config.top_k, scores.shape[-1])]
        scores = np.where(scores < least[:, None], -np.inf, scores)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    reached = np.cumsum(powers / powers.sum(axis=-1, keepdims=True), axis=-1)
    return np.minimum((reached < random.random((len(scores), 1))).sum(axis=-1), scores.shape[-1] - 1)


def host_logits(model: keras.Model, features: Any) -> np.ndarray:
    """Returns the logits of a batch as an array; the call is compiled once per shape."""
    outputs = keras.Model.predict_on_batch(model, features)  # KerasHub's own would tokenize its inputs
    return keras.ops.convert_to_numpy(outputs).astype(np.float32)
