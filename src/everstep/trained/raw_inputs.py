"""Data as a model's own preprocessor takes it: a task of KerasHub makes numbers of texts, and scales images, itself.

predictor, source = opened_for(predictor, ["what a film", "how dull"])
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everstep.engine import preprocess, preprocesses
from everstep.errors import UsageError
from everstep.trained.inputs import InputSource, Spec, open_input
from everstep.trained.models import KerasPredictor

_TEXT = Spec("text", (), "string")


class RawPredictor:
    """A task of KerasHub that preprocesses what it predicts, as its own `predict` does.

    Args:
      inner: The model, which takes what its preprocessor returns.
    """

    def __init__(self, inner: KerasPredictor) -> None:
        self._inner, self.model = inner, inner.model
        has_tokenizer = getattr(self.model.preprocessor, "tokenizer", None) is not None
        self.specs = [_TEXT] if has_tokenizer else inner.specs

    def predict(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """Returns the outputs by name, for arrays in the order of `specs`; the device may still compute them."""
        (features, *_) = preprocess(self.model, *arrays)
        if isinstance(features, Mapping):
            return self._inner.predict([features[spec.name] for spec in self._inner.specs])
        return self._inner.predict([features])

    def activation(self) -> str:
        """Returns the last layer's activation, `softmax` or `sigmoid`; empty if it is unknown."""
        return self._inner.activation()


def opened_for(predictor: Any, data: Any, without: Sequence[str] = (), resize: bool = False) -> tuple[Any, InputSource]:
    """Returns the data, opened, and the predictor that takes it: with the model's preprocessor, where that has one.

    Arrays and columns with the names of all the model's inputs are preprocessed already.

    Args:
      predictor: The model.
      data: See `open_input`.
      without: As in `open_input`.
      resize: As in `open_input`.

    Raises:
      UsageError: The data does not exist, cannot be read, or does not fit the model.
    """
    is_raw = (
        isinstance(predictor, KerasPredictor) and preprocesses(predictor.model) and len(predictor.model.outputs) == 1
    )
    if not is_raw or (isinstance(data, Mapping) and {spec.name for spec in predictor.specs} <= set(data)):
        return predictor, open_input(data, predictor.specs, without, resize)
    raw = RawPredictor(predictor)
    try:
        return raw, open_input(data, raw.specs, without, resize)
    except UsageError as refused:
        try:
            return predictor, open_input(data, predictor.specs, without, resize)
        except UsageError:
            raise refused from None
