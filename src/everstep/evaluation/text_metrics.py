"""Metrics of texts: what a model wrote against what was expected, one number per sample.

A prediction is a text, or a dict with the text under `text` and further values of the sample, such as its loss.
"""

import re
import string
from collections import Counter
from typing import Any

import numpy as np

from everstep.errors import UsageError, missing_extra, nearest
from everstep.evaluation.arrays import as_text
from everstep.evaluation.outcome import written
from everstep.evaluation.sample_metric import SampleMetric

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class ExactMatch(SampleMetric):
    """1 if the text is the expected one, else 0.

    Args:
      normalize: Whether case, punctuation and repeated spaces are ignored.
      name: The name of the column.
    """

    def __init__(self, normalize: bool = True, name: str = "exact_match"):
        self._normalize = normalize
        super().__init__(name, self._values, True, "whether the text is the expected one", "higher")

    def _values(self, y_true: Any, y_pred: Any) -> np.ndarray:
        as_compared = normalized if self._normalize else str
        return np.asarray([float(as_compared(a) == as_compared(b)) for a, b in _pairs(y_true, y_pred)])


class TokenF1(SampleMetric):
    """The F1 score of the words that both texts have, in [0, 1]; case and punctuation are ignored.

    Two texts without words score 1.

    Args:
      name: The name of the column.
    """

    def __init__(self, name: str = "token_f1"):
        super().__init__(name, self._values, True, "words in common with the expected text, 0 to 1", "higher")

    def _values(self, y_true: Any, y_pred: Any) -> np.ndarray:
        return np.asarray([self._score(a, b) for a, b in _pairs(y_true, y_pred)])

    def _score(self, expected: str, text: str) -> float:
        wanted, found = normalized(expected).split(), normalized(text).split()
        if not wanted and not found:
            return 1.0
        common = sum((Counter(wanted) & Counter(found)).values())
        return 2 * common / (len(wanted) + len(found))


class Rouge(SampleMetric):
    """ROUGE, as the package `rouge-score` computes it: the F-measure, in [0, 1].

    Args:
      kind: `rouge1`, `rouge2`, `rougeL` or `rougeLsum`.
      name: The name of the column; that of the kind by default.

    Raises:
      UsageError: There is no such kind, or the package is not installed.
    """

    def __init__(self, kind: str = "rougeL", name: str | None = None):
        if kind not in ROUGE:
            raise UsageError("there is no such kind", key="kind", received=kind, remedy=nearest(kind, ROUGE))
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise missing_extra("rouge_score", "text", "ROUGE") from error
        self._kind, self._scorer = kind, RougeScorer([kind])
        super().__init__(name or kind, self._values, True, f"{kind} of the expected text, 0 to 1", "higher")

    def _values(self, y_true: Any, y_pred: Any) -> np.ndarray:
        scores = (self._scorer.score(expected, text)[self._kind] for expected, text in _pairs(y_true, y_pred))
        return np.asarray([score.fmeasure for score in scores])


class SampleLoss(SampleMetric):
    """The loss of each sample, for predictions that hold it: `{"text": …, "loss": …}`.

    Args:
      name: The name of the column, and of the loss in the predictions.
    """

    def __init__(self, name: str = "loss"):
        super().__init__(name, self._values, True, "cross-entropy per token of the expected text", "lower")

    def _values(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred[self.name]


def normalized(text: str) -> str:
    """Returns a text in lower case, without punctuation, and with single spaces."""
    return re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()


def _pairs(y_true: Any, y_pred: Any) -> list[tuple[str, str]]:
    """Returns expected text and text of each sample."""
    expected, texts = (written(values).tolist() for values in (y_true, y_pred))
    return [(as_text(a), as_text(b)) for a, b in zip(expected, texts, strict=True)]
