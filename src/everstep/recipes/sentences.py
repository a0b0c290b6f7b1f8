"""The task and data of `text/tags`: sentences, and the class of each word: a person, a place, a month, or none.

`paris meets june in paris and april leaves florence in april`: the class of a name depends on its neighbours.
"""

import itertools
from typing import Any

import keras
import numpy as np

from everstep.recipes.transformer import transformer
from everstep.task import IGNORED, TokenClassificationTask

CLASSES = ("other", "person", "place", "month")
"""The classes of words; a label is an index into this tuple."""

NAMES = {
    "person": ("anna", "ben", "clara", "paris", "florence", "sydney", "april", "june"),
    "place": ("rome", "oslo", "lima", "paris", "florence", "sydney"),
    "month": ("march", "july", "april", "june"),
}
"""The words of each class; several are in two of them."""

CLAUSES = (
    ("person", "meets", "person", "in", "place"),
    ("person", "leaves", "place", "in", "month"),
    ("in", "month", "person", "flies", "to", "place"),
    ("person", "rests", "in", "place"),
)
"""A sentence has two of these; a class name is replaced by one of its words."""

LENGTH = 2 * max(map(len, CLAUSES)) + 1
"""The longest sentence in words, with the `and` in its middle."""

VOCABULARY = ("", *sorted({"and", *itertools.chain(*CLAUSES, *NAMES.values())} - {*NAMES}))
"""All words: a token is a word's index. The first one pads sentences."""

SENTENCES = 5000


def split(training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and labels, (sentences, LENGTH), of four fifths of the sentences, or of the others."""
    generator = np.random.default_rng(0)
    sentences: dict[tuple[str, ...], list[str]] = {}  # no sentence twice
    while len(sentences) < SENTENCES:
        words, classes = _sentence(generator)
        sentences[tuple(words)] = classes
    tokens = [_padded([VOCABULARY.index(word) for word in words], 0) for words in sentences]
    labels = [_padded([CLASSES.index(name) for name in classes], IGNORED) for classes in sentences.values()]
    cut = slice(None, SENTENCES * 4 // 5) if training else slice(SENTENCES * 4 // 5, None)
    return np.array(tokens, "int32")[cut], np.array(labels, "int32")[cut]


def _sentence(generator: np.random.Generator) -> tuple[list[str], list[str]]:
    """Returns the words of a sentence, and the class of each."""
    first, second = generator.choice(len(CLAUSES), 2)
    pattern = (*CLAUSES[first], "and", *CLAUSES[second])
    words = [str(generator.choice(NAMES[word])) if word in NAMES else word for word in pattern]
    return words, [word if word in NAMES else "other" for word in pattern]


def _padded(numbers: list[int], value: int) -> list[int]:
    return [*numbers, *[value] * (LENGTH - len(numbers))]


class TagsTask(TokenClassificationTask):
    """Classifies each word of a sentence; padding is ignored."""

    def build_model(self) -> keras.Model:
        """Returns a transformer that attends to words on both sides."""
        shape, classes = self.task_config.model, len(CLASSES)
        return transformer(len(VOCABULARY), LENGTH, shape, causal=False, outputs=classes)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the sentences that `params` are for, and the classes of their words."""
        return split(params.is_training)
