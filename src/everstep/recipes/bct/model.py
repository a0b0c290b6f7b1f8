"""`BCTModel`, `DistillBCTModel` and `loss_func`: backward-compatible training for compiled Keras models.

    influence = bct.Influence(bct.OldModel.load("runs/old"), names)
    influence.synthesise([(images, labels)])
    model = bct.with_classifier(backbone, names)
    model = bct.BCTModel(model.input, model.output, influence=influence)
    model.compile("adam", loss=bct.loss_func(weight=1.0))
    everstep.fit(model, images, labels, epochs=5, model_dir="runs/new")

The steps are Keras's own, so they run on every backend, and under `model.fit` as well.
"""

import math
from typing import Any

import keras

from everstep.errors import UsageError
from everstep.recipes.bct.embedding import find_classifier, outputs
from everstep.recipes.bct.influence import Influence, split


@keras.saving.register_keras_serializable("everstep")
class BCTLoss(keras.losses.Loss):
    """The new classifier's cross-entropy, and the weight of the influence loss that `BCTModel` adds to it.

    Args:
      weight: The factor of the influence loss; 0 trains independently, to the bit.
    """

    def __init__(self, weight: float = 1.0, name: str = "bct_loss", **kwargs: Any) -> None:
        if not 0 <= weight < math.inf:
            raise UsageError("must be a number from 0 on", key="weight", received=weight)
        super().__init__(name=name, **kwargs)
        self.weight = float(weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the cross-entropy of each sample; `y_pred` are logits."""
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    def get_config(self) -> dict[str, Any]:
        """Returns what is needed to create it again."""
        return {**super().get_config(), "weight": self.weight}


def loss_func(weight: float = 1.0) -> BCTLoss:
    """Returns the loss to compile a `BCTModel` with: new loss + weight × influence loss.

    Raises:
      UsageError: The weight is below 0.
    """
    return BCTLoss(weight)


def _require_same_classes(model: keras.Model, influence: Influence | None) -> None:
    """Refuses an influence that was created for other labels: it would silently use the wrong classes."""
    classifier = find_classifier(model)
    if influence is None or classifier is None or classifier.class_names == influence.class_names:
        return
    raise UsageError(
        f"was created for the classes {influence.class_names}, but the model's classifier has {classifier.class_names}",
        key="influence",
        remedy="labels are numbers in that order: list the same classes, in the same order",
    )


class _Untracked:
    """Holds an influence that Keras must neither track nor save with the model."""

    def __init__(self, held: Influence | None) -> None:
        self.held = held


@keras.saving.register_keras_serializable("everstep")
class BCTModel(keras.Model):
    """A functional model with the outputs embedding and logits that learns under an old model's influence.

    The old model's variables belong to the state of its training, but not to its weights: a saved model holds the new
    one alone, loads without the old one, and may be the old one of the next.

    Args:
      inputs: The inputs of the functional model.
      outputs: Its outputs: `{"embedding": …, "logits": …}`, or a pair in that order.
      influence: The old model; None to train independently.
    """

    variants: tuple[str, ...] = ("synthesise_all", "synthesise_new", "old_classes")

    def __init__(self, *args: Any, influence: Influence | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if influence is not None and influence.variant not in self.variants:
            raise UsageError(
                f"{type(self).__name__} knows the variants {', '.join(self.variants)}",
                key="influence.variant",
                received=influence.variant,
            )
        _require_same_classes(self, influence)
        self._influence = _Untracked(influence)
        self.head_acc = keras.metrics.SparseCategoricalAccuracy(name="head_acc")
        self.old_head_acc = keras.metrics.SparseCategoricalAccuracy(name="old_head_acc") if influence else None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles it, with the loss that `loss_func` returns.

        Raises:
          UsageError: The loss is another one.
        """
        super().compile(*args, **kwargs)
        if self.loss is not None and not isinstance(self.loss, BCTLoss):
            remedy = "compile with loss=everstep.bct.loss_func(weight)"
            raise UsageError("expected a BCTLoss", key="loss", received=self.loss, remedy=remedy)

    @property
    def influence(self) -> Influence | None:
        """The influence of the old model; None where it is not used, as with weight 0."""
        weight = getattr(getattr(self, "loss", None), "weight", 1.0)
        return self._influence.held if weight > 0 else None

    @property
    def variables(self) -> list[keras.Variable]:
        """All state of its training: that of the model, and the frozen one of the old model."""
        kept = getattr(self, "_influence", None)
        old = kept.held.variables if kept is not None and self.influence is not None else []
        return [*super().variables, *old]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the new loss and, on top of it, the weighted influence loss."""
        embedding, logits = outputs(y_pred)
        own = super().compute_loss(x, split(y)[0], logits, sample_weight, training)
        if self.influence is None or self.old_head_acc is None:
            return own
        # Not with the other metrics: on JAX, Keras shows them no variables but their own.
        answers, wanted, known = self.influence.judge(embedding, y)
        self.old_head_acc.update_state(wanted, answers, sample_weight=known)
        return own + self.loss.weight * self.influence.loss(embedding, y, x, sample_weight)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates what it was compiled with, and the accuracy of the new classifier."""
        classes, (_, logits) = split(y)[0], outputs(y_pred)
        super().compute_metrics(x, classes, logits, sample_weight)
        self.head_acc.update_state(classes, logits)
        return self.get_metrics_result()


@keras.saving.register_keras_serializable("everstep")
class DistillBCTModel(BCTModel):
    """A `BCTModel` for an influence with `variant="distill"`.

    Samples of classes that the old classifier lacks learn from the old model's own outputs.
    """

    variants = ("distill",)
