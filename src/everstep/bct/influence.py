"""The influence loss: how well the old classifier recognises new embeddings.

The gradient goes through the old classifier into the new embedding; the classifier itself is frozen.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.bct.classifier import Classifier, fit_width
from everstep.bct.config import Variant
from everstep.bct.labels import label_map, require_common, split
from everstep.bct.old import OldModel, frozen_classifier
from everstep.bct.synthesis import class_means
from everstep.errors import UsageError, nearest

logger = logging.getLogger(__name__)

VARIANTS = Variant.__args__  # type: ignore[attr-defined]


class Influence(keras.Layer):
    """The old model as a judge of new embeddings.

        influence = Influence(OldModel.load("runs/old"), ["cat", "dog", "fox"])
        influence.synthesise([(images, labels)])
        loss = influence.loss(embedding, labels)

    What it keeps is part of a run's state and never changes in training: the old classifier and, for `distill`, the
    old embedding model.

    Args:
      old: The old model.
      class_names: The new model's classes, in the order of its labels.
      variant: See `CompatibilityConfig.variant`.
      temperature: Of the old model's answers, in `distill`.
      exclude_datasets: Samples with these dataset ids are left out.
      scale: What cosines with synthesised weights are multiplied by, where the old model has no classifier that says.

    Raises:
      UsageError: The old model has not what the variant needs.
    """

    def __init__(
        self,
        old: OldModel,
        class_names: Sequence[str],
        variant: str = "synthesise_all",
        temperature: float = 1.0,
        exclude_datasets: Sequence[int] = (),
        scale: float = 16.0,
    ) -> None:
        super().__init__(name="influence", trainable=False)
        if variant not in VARIANTS:
            raise UsageError(f"variant: received {variant!r}; {nearest(variant, VARIANTS)}")
        if not temperature > 0:
            raise UsageError(f"temperature: received {temperature}, must be above 0")
        self.variant, self.temperature = variant, float(temperature)
        self.exclude_datasets = [int(one) for one in exclude_datasets]
        self._old, self._names = [old], list(class_names)  # in a list, where Keras does not follow it into the state
        self.classifier = self._judge(old, scale)
        self.old_embedding = old.embedding if variant == "distill" else None
        self._map = label_map(self._names, self.classifier.class_names)
        self.built = True
        self.is_ready = not self.needs_synthesis
        if not self.classifier.normalize:
            logger.warning(
                "%s: its classifier is not normalised: the new model is seldom compatible then; "
                "variant=synthesise_all does without its weights",
                old.where,
            )

    @property
    def class_names(self) -> list[str]:
        """The new model's classes, in the order of its labels."""
        return list(self._names)

    @property
    def needs_synthesis(self) -> bool:
        """Whether `synthesise` has to be called before the first step of a new run."""
        return self.variant.startswith("synthesise")

    def _judge(self, old: OldModel, scale: float) -> Classifier:
        """Returns the frozen classifier; columns still to be synthesised hold NaN, so that nobody forgets to."""
        if self.variant == "synthesise_all":
            own = old.classifier
            scale = own.scale if own is not None and own.normalize else scale
            return frozen_classifier(np.full((old.size, len(self._names)), np.nan), self._names, True, scale)
        kept = old.require_classifier(self.variant)
        if self.variant != "distill":
            require_common(self._names, kept.class_names)
        return self._extended(kept) if self.variant == "synthesise_new" else kept

    def _extended(self, kept: Classifier) -> Classifier:
        """Returns the old classifier with a column for every class it lacks."""
        new = [name for name in self._names if name not in kept.class_names]
        kernel = ops.convert_to_numpy(kept.kernel)
        wide = np.concatenate([kernel, np.full((len(kernel), len(new)), np.nan)], axis=1)
        bias = None if kept.bias is None else ops.convert_to_numpy(kept.bias)
        level = None if bias is None else np.concatenate([bias, np.full(len(new), bias.mean())])
        return frozen_classifier(wide, [*kept.class_names, *new], kept.normalize, kept.scale, level)

    def synthesise(self, batches: Iterable[tuple[Any, Any]]) -> None:
        """Gives the classes that the old classifier lacks their weights, from the old embeddings of training samples.

        Called again, it makes them again.

        Args:
          batches: Pairs (x, labels), without augmentation; labels as in training.

        Raises:
          UsageError: Such a class has no sample.
        """
        kept = [] if self.variant == "synthesise_all" else self._old[0].class_names
        lacking = [label for label, name in enumerate(self._names) if name not in kept]
        means = class_means(self._old[0], ((x, split(y)[0]) for x, y in batches), self._names, lacking)
        kernel = ops.convert_to_numpy(self.classifier.kernel).copy()
        length = 1.0 if self.classifier.normalize else np.linalg.norm(kernel[:, : len(kept)], axis=0).mean()
        kernel[:, self._map[lacking]] = means[:, lacking] * length
        self.classifier.kernel.assign(kernel)
        self.is_ready = True

    def judge(self, embedding: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Returns the old classifier's logits of new embeddings, the old labels, and where those are valid (0 or 1)."""
        classes, datasets = split(labels)
        logits = self.classifier(fit_width(embedding, self.classifier.kernel.shape[0]))
        flat = ops.cast(ops.reshape(classes, (-1,)), "int32")
        wanted = ops.take(ops.convert_to_tensor(self._map), flat)
        known = ops.cast(wanted >= 0, "float32") * self._counted(datasets, flat)
        return logits, ops.maximum(wanted, 0), known

    def loss(self, embedding: Any, labels: Any, x: Any = None, sample_weight: Any = None) -> Any:
        """Returns the mean cross-entropy over the samples that count; 0 where none does.

        Args:
          embedding: What the new model returned.
          labels: New labels, or a dict with them and dataset ids.
          x: The inputs as the old model reads them; only `distill` needs them.
          sample_weight: A weight per sample.
        """
        logits, wanted, known = self.judge(embedding, labels)
        losses = known * keras.losses.sparse_categorical_crossentropy(wanted, logits, from_logits=True)
        counted = known
        if self.old_embedding is not None:
            counted = self._counted(split(labels)[1], wanted)
            answers = self.classifier(self.old_embedding(x, training=False))
            losses = losses + (counted - known) * self._distilled(logits, answers)
        if sample_weight is not None:
            losses = losses * ops.cast(ops.reshape(sample_weight, (-1,)), losses.dtype)
        return ops.sum(losses) / ops.maximum(ops.sum(counted), 1.0)

    def _counted(self, datasets: Any, like: Any) -> Any:
        """Returns 0 for samples of excluded datasets, 1 for all others."""
        counted = ops.ones_like(like, "float32")
        if not self.exclude_datasets:
            return counted
        if datasets is None:
            raise UsageError(
                f"exclude_datasets: received {self.exclude_datasets}, but the labels do not say which dataset a sample "
                'is from: return {"label": y, "dataset_id": ids} as labels'
            )
        ids = ops.cast(ops.reshape(datasets, (-1,)), "int32")
        for one in self.exclude_datasets:
            counted = counted * ops.cast(ids != one, "float32")
        return counted

    def _distilled(self, logits: Any, answers: Any) -> Any:
        """Returns the cross-entropy of logits with the old model's own answers, both softened, per sample.

        Multiplied by the temperature's square its gradient is as large as that of plain labels.
        """
        soft = ops.stop_gradient(ops.softmax(answers / self.temperature))
        return -ops.sum(soft * ops.log_softmax(logits / self.temperature), axis=-1) * self.temperature**2
