"""What `model.evaluate` would say, of predictions that somebody else has made."""

from typing import Any, Protocol

import keras

from everstep.task import compiled_step


class Overall(Protocol):
    """Takes batch after batch with the answers to it, and returns numbers for all of them."""

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch."""

    def result(self) -> dict[str, float]:
        """Returns the numbers by name."""


class CompiledMetrics:
    """The loss and the metrics that a model was compiled with.

    Args:
      model: The model; it has the weights that made the predictions, on which its own losses depend.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._total, self._rows = model, 0.0, 0
        self._own_step = type(model).test_step is not keras.Model.test_step
        self._logs: dict[str, float] = {}
        model.reset_metrics()

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch; a model with a `test_step` of its own is asked itself."""
        if self._own_step:
            self._logs = self._model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
            return
        y, y_pred, weight = (_tensors(part) for part in (y, y_pred, weight))
        rows = len(keras.tree.flatten(y)[0])
        loss = compiled_step.compiled_loss((x, y, weight), y_pred, self._model, training=False)
        self._total, self._rows = self._total + float(loss) * rows, self._rows + rows
        self._model.compute_metrics(x, y, y_pred, sample_weight=weight)

    def result(self) -> dict[str, float]:
        """Returns the mean loss, every sample counted once, and the metrics."""
        if self._own_step:
            return {name: float(value) for name, value in self._logs.items()}
        others = {name: value for name, value in self._model.get_metrics_result().items() if name != "loss"}
        return {"loss": self._total / max(self._rows, 1), **{name: float(value) for name, value in others.items()}}


class MeanScore:
    """The `score` of an estimator, every sample counted once; nothing for one that has none."""

    def __init__(self, estimator: Any) -> None:
        self._score = getattr(estimator, "score", None)
        self._total, self._rows = 0.0, 0

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch."""
        if self._score is not None:
            self._total += float(self._score(x, y)) * len(y)
            self._rows += len(y)

    def result(self) -> dict[str, float]:
        """Returns the mean of the batches' scores."""
        return {"score": self._total / self._rows} if self._rows else {}


def _tensors(part: Any) -> Any:
    return None if part is None else keras.tree.map_structure(keras.ops.convert_to_tensor, part)
