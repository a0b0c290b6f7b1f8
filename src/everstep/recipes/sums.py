"""The task and data of `text/tiny`: sums such as `27+95=221`, the answer's last digit first."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from everstep.errors import UsageError
from everstep.recipes.transformer import transformer
from everstep.task import IGNORED, LanguageModelTask

ALPHABET = " 0123456789+="
"""The vocabulary: a token is a character's index. The first one is for padding, which no sum needs."""

NUMBERS = 100
"""Both numbers are below it."""

ANSWER = 3
"""Digits of an answer."""

LENGTH = len("27+95=221") - 1
"""Tokens that a model sees; the last digit is only predicted."""


def text(first: int, second: int) -> str:
    """Returns a sum, with the answer's digits in the order in which addition by hand yields them.

    text(27, 95)  # "27+95=221"
    """
    answer = f"{first + second:0{ANSWER}d}"
    return f"{first:02d}+{second:02d}={answer[::-1]}"


def tokens(line: str) -> list[int]:
    """Returns the tokens of a text."""
    return [ALPHABET.index(character) for character in line]


def split(training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and labels of four fifths of all sums, or of the rest, which training never sees.

    Labels are the next tokens; those of the question, which cannot be predicted, are ignored.
    """
    pairs = np.random.default_rng(0).permutation(NUMBERS * NUMBERS)
    cut = len(pairs) * 4 // 5
    chosen = pairs[:cut] if training else pairs[cut:]
    lines = np.array([tokens(text(*divmod(int(pair), NUMBERS))) for pair in chosen], "int32")
    labels = lines[:, 1:].copy()
    labels[:, :-ANSWER] = IGNORED
    return lines[:, :-1], labels


class SumsTask(LanguageModelTask):
    """Continues sums; only the answers count in the loss."""

    def build_model(self) -> keras.Model:
        """Returns the transformer."""
        return transformer(len(ALPHABET), LENGTH, self.task_config.model, causal=True)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text such as `27+95=`.

        Raises:
          UsageError: It has other characters than digits, + and =.
        """
        if not set(text) <= set(ALPHABET):
            raise UsageError("may have digits, + and = only", key="prompt", received=text, remedy="such as '27+95='")
        return tokens(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return "".join(ALPHABET[token] for token in tokens)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the sums that `params` are for."""
        return split(params.is_training)
