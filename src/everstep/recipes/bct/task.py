"""`BCTTask`: a classifier whose embeddings stay comparable with those of an older model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import everstep.recipes.bct.model  # noqa: F401  registers `BCTModel`, which an old model may be
from everstep import Task, value_and_grad
from everstep.data import check_labels, make_stream
from everstep.errors import UsageError
from everstep.recipes.bct.embedding import outputs, with_classifier
from everstep.recipes.bct.influence import Influence, parts, split
from everstep.recipes.bct.old import OldModel
from everstep.task import unpack, weight_argument
from everstep.task.initial import Report
from everstep.types import Batch


class BCTTask(Task):
    """Learns classes, and applies the old model's classifier to the new embeddings. Write two methods:

        class Faces(BCTTask):
            def build_embedding(self):
                return keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])

            def build_inputs(self, params, input_context=None):
                return images, labels

    The config is a `BCTConfig`. Labels are whole numbers, or `{"label": …, "dataset_id": …}` where datasets are
    excluded. The old model is part of the run's state and is never changed; the optimizer does not know it. An
    `init_fn` passed to `run_experiment` replaces `initialize`, so it has to call it.

    Attributes:
      influence: The influence of the old model; None where the new one trains independently.
    """

    influence: Influence | None = None

    def build_embedding(self) -> keras.Model:
        """Returns the functional or sequential model from inputs to embeddings (batch, size)."""
        raise UsageError(f"task {self.name!r} has no embedding", remedy="write build_embedding()")

    def old_inputs(self, features: Any) -> Any:
        """Returns inputs as the old model reads them: unchanged; override it where sizes or scales differ."""
        return features

    def synthesis_inputs(self) -> Any:
        """Returns the training data that weights of new classes are made from: that of `build_inputs`.

        Where `build_inputs` augments training samples, return them here without.
        """
        return self.build_inputs(self.task_config.train_data.replace(is_training=True))

    def build_model(self) -> keras.Model:
        """Returns embedding and classifier; the old model, if there is one, becomes `influence`."""
        config = self.task_config
        model = with_classifier(
            self.build_embedding(), config.classes, config.classifier.normalize, config.classifier.scale
        )
        bct = config.bct
        self.influence = self._influence(bct) if bct.old_model and bct.weight > 0 else None
        return model

    def _influence(self, bct: Any) -> Influence:
        old = OldModel.load(
            bct.old_model,
            size=bct.old_embedding_size,
            classifier=bct.old_classifier,
            classes=bct.old_classes,
            where="task.bct.old_model",
        )
        scale = self.task_config.classifier.scale
        names = self.task_config.classes
        influence = Influence(old, names, bct.variant, bct.temperature, bct.exclude_datasets, scale)
        influence.is_ready = True  # before the first step: `initialize` synthesises, or the weights are restored
        return influence

    def initialize(self, model: keras.Model) -> Report | list[Any] | None:
        """Loads initial weights as every task does, and synthesises what the old classifier lacks.

        Called once: a run that resumes has both in its checkpoint.
        """
        report = super().initialize(model)
        if self.influence is not None and self.influence.needs_synthesis:
            self.influence.synthesise(self._synthesis_batches())
        return report

    def _synthesis_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yields every training sample once, in order."""
        data = self.task_config.train_data.replace(is_training=False, drop_remainder=False, repeat=False)
        stream = make_stream(self.synthesis_inputs(), data, training=False, seed=0)
        if stream.epoch_never_ends:
            raise UsageError(
                "its training data never ends, so the mean of a class is unknown",
                key=f"task {self.name!r}",
                remedy="write synthesis_inputs(), which returns every sample once",
            )
        for batch in stream:
            if stream.state()["epoch"] > 0:
                break
            features, labels, _ = unpack(batch)
            yield self.old_inputs(features), labels

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the new classifier's own loss: the mean cross-entropy plus the model's own losses."""
        classes, (_, logits) = split(labels)[0], outputs(model_outputs)
        losses = keras.losses.sparse_categorical_crossentropy(classes, logits, from_logits=True)
        weighted = losses if sample_weight is None else losses * ops.cast(sample_weight, losses.dtype)
        return ops.mean(weighted) + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the accuracy of the new classifier and, of samples whose class it has, of the old one."""
        names = ["head_acc"] if self.influence is None else ["head_acc", "old_head_acc"]
        return [keras.metrics.SparseCategoricalAccuracy(name=name) for name in names]

    def process_metrics(self, metrics: Sequence[keras.Metric], labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        """Updates both accuracies."""
        embedding, logits = outputs(model_outputs)
        for metric in metrics:
            if metric.name == "old_head_acc" and self.influence is not None:
                answers, wanted, known = self.influence.judge(embedding, labels)
                metric.update_state(wanted, answers, sample_weight=known)
            else:
                metric.update_state(split(labels)[0], logits, **kwargs)

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Learns from one batch: the new loss, and the influence loss times its weight."""
        features, labels, weight = self.unpack(inputs)
        weighted = weight_argument(self, weight)

        def loss_fn() -> tuple[Any, Any, Any]:
            answers = model(features, training=True)
            own = self.build_losses(labels, answers, aux_losses=model.losses, **weighted)
            return *self._total(own, answers, features, labels, weight), answers

        (loss, parts, answers), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        self.process_metrics(metrics, labels, answers, **weighted)
        return {self.loss: loss, **parts}

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch with the same losses."""
        features, labels, weight = self.unpack(inputs)
        weighted = weight_argument(self, weight)
        answers = self.inference_step(features, model)
        own = self.build_losses(labels, answers, aux_losses=model.losses, **weighted)
        loss, parts = self._total(own, answers, features, labels, weight)
        self.process_metrics(metrics, labels, answers, **weighted)
        return {self.loss: loss, **parts}

    def _total(self, own: Any, answers: Any, features: Any, labels: Any, weight: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the loss to learn from and its parts; without an old model, the new loss as it is."""
        if self.influence is None:
            return own, {}
        seen = self.old_inputs(features) if self.influence.old_embedding is not None else None
        part = self.influence.loss(outputs(answers)[0], labels, seen, weight)
        return own + self.task_config.bct.weight * part, {"influence_loss": part}

    def check_batch(self, inputs: Batch) -> None:
        """Checks labels on the host before they reach the device."""
        labels = parts(unpack(inputs)[1])[0]
        if isinstance(labels, np.ndarray):
            check_labels(labels, len(self.task_config.classes), "the labels")
