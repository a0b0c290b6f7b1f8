"""The influence loss: how well the old classifier recognises new embeddings.

The gradient goes through the old classifier into the new embedding; the classifier itself is frozen. Classes that it
never saw get weights that are synthesised: the mean direction of their old embeddings. Old classes are found by name.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.errors import UsageError, nearest
from everstep.recipes.bct.config import Variant
from everstep.recipes.bct.embedding import Classifier, fit_width
from everstep.recipes.bct.metrics import unit_rows
from everstep.recipes.bct.old import OldModel, frozen_classifier

LABEL, DATASET = "label", "dataset_id"


def label_map(new: Sequence[str], old: Sequence[str]) -> np.ndarray:
    """Returns, for each new label, the old one of the same name; -1 where there is none."""
    places = {name: index for index, name in enumerate(old)}
    return np.asarray([places.get(name, -1) for name in new], "int32")


def require_common(new: Sequence[str], old: Sequence[str]) -> None:
    """Refuses classes of which no name is in both models.

    Raises:
      UsageError: No class of the old classifier is among the new ones.
    """
    if not set(new) & set(old):
        raise UsageError(
            f"no class of the old model ({_some(old)}) has the name of a new one ({_some(new)})",
            key="bct",
            remedy="labels are matched by name: correct the names, or use variant=synthesise_all, which needs none",
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"{shown}, …" if len(names) > 3 else shown or "none are known"


def parts(labels: Any) -> tuple[Any, Any]:
    """Returns class labels and dataset ids, whatever their shape: of `y`, or of `{"label": y, "dataset_id": ids}`.

    Raises:
      UsageError: There are none, or a dict without them.
    """
    if labels is None:
        raise UsageError(
            "the batches have no labels", remedy="make them (x, y), or (x, {'label': y, 'dataset_id': ids})"
        )
    if not isinstance(labels, Mapping):
        return labels, None
    if LABEL not in labels:
        raise UsageError(f"the labels are a dict with {sorted(map(str, labels))}", remedy=f"it needs the key {LABEL!r}")
    return labels[LABEL], labels.get(DATASET)


def split(labels: Any) -> tuple[Any, Any]:
    """Returns the same of one batch, whose class labels are (batch,) or (batch, 1).

    Raises:
      UsageError: A dict without labels, or several numbers per sample.
    """
    classes, datasets = parts(labels)
    _refuse_one_hot(classes)
    return classes, datasets


def _refuse_one_hot(classes: Any) -> None:
    """Refuses (batch, classes): flattened, every zero and one of it would be taken for a label."""
    shape = tuple(getattr(classes, "shape", ()))
    if len(shape) > 1 and shape[1:] != (1,):
        raise UsageError(
            f"the labels have the shape {shape}, but one whole number per sample is expected",
            remedy="of one-hot labels, give argmax(axis=-1)",
        )


def class_means(
    old: OldModel, batches: Iterable[tuple[Any, Any]], names: Sequence[str], needed: Sequence[int]
) -> np.ndarray:
    """Returns a unit column for every class, float32 (old size, classes): the mean of its samples' unit embeddings.

    Args:
      old: The old model; in inference mode, as always.
      batches: Pairs (x, labels) of the training samples, without augmentation.
      names: The classes; label 0 is the first.
      needed: The labels whose columns will be used; the others' may be zeros, where there is no sample.

    Raises:
      UsageError: A label is out of range, or a class that is needed has no sample, or samples that cancel each other
        out.
    """
    sums, counts = np.zeros((len(names), old.size)), np.zeros(len(names), "int64")
    for x, labels in batches:
        flat = np.asarray(labels).reshape(-1).astype("int64")
        if flat.size and not 0 <= flat.min() <= flat.max() < len(names):
            raise UsageError(f"a label is {flat.min()} or {flat.max()}, but there are {len(names)} classes", key="bct")
        np.add.at(sums, flat, unit_rows(old.embed(x, max(len(flat), 1))))
        counts += np.bincount(flat, minlength=len(names))
    _require(needed, counts, sums, names)
    return unit_rows(sums).T.astype("float32")


def _require(needed: Sequence[int], counts: np.ndarray, sums: np.ndarray, names: Sequence[str]) -> None:
    empty = [names[label] for label in needed if not counts[label]]
    if empty:
        raise UsageError(
            f"no training sample is of class {empty[0]!r}{f' and {len(empty) - 1} more' if empty[1:] else ''}",
            key="bct",
            remedy="weights cannot be synthesised for it; add samples, or take it out of the classes",
        )
    lost = [names[label] for label in needed if not np.linalg.norm(sums[label]) > 0]
    if lost:
        raise UsageError(
            f"the old embeddings of class {lost[0]!r} are zero on average: no weights follow from them", key="bct"
        )


logger = logging.getLogger(__name__)

VARIANTS = Variant.__args__  # type: ignore[attr-defined]


class Influence(keras.Layer):
    """The influence loss: the old model's classifier applied to new embeddings.

        influence = Influence(OldModel.load("runs/old"), ["cat", "dog", "fox"])
        influence.synthesise([(images, labels)])
        loss = influence.loss(embedding, labels)

    Its variables are part of a run's state and never change in training: the old classifier and, for `distill`, the
    old embedding model.

    Attributes:
      is_ready: Whether the old classifier has weights for all classes that it judges: with the variants that synthesise
        them, after `synthesise`, or where its variables are restored.

    Args:
      old: The old model.
      class_names: The new model's classes, in the order of its labels.
      variant: See `CompatibilityConfig.variant`.
      temperature: Of the old model's answers, in `distill`.
      exclude_datasets: Samples with these dataset ids are left out.
      scale: The factor from cosines to logits, where the old model has no normalised classifier to take it from.

    Raises:
      UsageError: The old model lacks what the variant needs.
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
            raise UsageError("unknown variant", key="variant", received=variant, remedy=nearest(variant, VARIANTS))
        if not temperature > 0:
            raise UsageError("must be above 0", key="temperature", received=temperature)
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
                "%s: its classifier is not normalised, so that the new model is seldom compatible; "
                "variant=synthesise_all does not use its weights",
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
        """Returns the frozen classifier; columns that are not synthesised yet hold NaN."""
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
        """Returns the old classifier's logits of new embeddings, the old labels, and where those are valid (0 or 1).

        Raises:
          UsageError: `synthesise` was not called yet.
        """
        if not self.is_ready:
            raise UsageError(
                "has no weights for the new classes yet",
                key="influence",
                remedy="call influence.synthesise([(x, y)]) before training",
            )
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

        Raises:
          UsageError: `synthesise` was not called yet.
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
                "but the labels do not say which dataset a sample is from",
                key="exclude_datasets",
                received=self.exclude_datasets,
                remedy='return {"label": y, "dataset_id": ids} as labels',
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
