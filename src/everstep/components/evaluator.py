"""What is measured on each data point."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.components.base import BaseClass
from everstep.evaluation.kinds import Kind


class EvaluatorBase(BaseClass):
    """Names the functions that judge one prediction each.

        class Evaluator(EvaluatorBase):
            def get_eval_funcs(self):
                return {"absolute error": lambda y_true, y_pred: abs(y_true - y_pred)}

    Functions get one data point, without a batch axis; those decorated with `everstep.evaluation.vectorized` get a
    batch and are many times faster. `everstep.evaluation` has ready-made ones.
    """

    def _set_defaults(self) -> None:
        """Has no parameters; override it where there are some."""

    def _load_params(self, config: Any) -> None:
        """Has no parameters; override it where there are some."""

    kind: Kind | None = None
    """What the data are, where the first batch would be misread: "regression" for labels that begin with 0 and 1."""

    from_logits: bool | None = None
    """Whether predictions over classes are logits; None: as the first batch looks."""

    @abc.abstractmethod
    def get_eval_funcs(self) -> Mapping[str, Any] | Sequence[Any] | None:
        """Returns functions `f(y_true, y_pred)` by name, or a list of metrics; None for the model's own ones only."""

    def get_class_names(self) -> Sequence[str] | None:
        """Returns the names of the classes in order, for the report; None where there are none."""
        return None

    def get_columns(self, x: Any, y: Any, data_id: str) -> dict[str, Any]:
        """Returns further facts about one data point by name, numbers or texts: what the report is sliced by.

            def get_columns(self, x, y, data_id):
                return {"camera": data_id.split("_")[0], "brightness": float(x.mean())}

        Every data point has the same names. They are columns of `reports/<split>.parquet`, not of the CSV.

        Args:
          x: The input as the model gets it, without a batch axis.
          y: The label.
          data_id: The id that its row has.
        """
        return {}

    def show(self, x: Any) -> Any:
        """Returns what the report shows of one input: an image `(h, w)` or `(h, w, channels)`, text, or numbers."""
        return x
