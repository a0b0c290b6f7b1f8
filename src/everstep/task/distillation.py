"""Distillation: a small model, the student, learns from the outputs of a trained one, the teacher."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from everstep.task.classification import ClassificationTask
from everstep.task.grad import value_and_grad
from everstep.types import Batch


class DistillationTask(ClassificationTask):
    """Classifies samples as a teacher does. Write `build_student`, `build_teacher` and `build_inputs`.

    Both models return a logit per class. The loss is

        (1 - weight) · cross-entropy(labels, student) + weight · T² · KL(softmax(teacher / T), softmax(student / T))

    with the `temperature` T and the `weight` of the task's config. T² keeps the size of the gradients the same for
    every temperature. Evaluations report the student's cross-entropy and accuracy; the exported model is the
    student alone.

    Attributes:
      teacher: The trained model. It is frozen, and computes as in inference.
    """

    teacher: keras.Model

    @abc.abstractmethod
    def build_student(self) -> keras.Model:
        """Returns the model to train."""

    @abc.abstractmethod
    def build_teacher(self) -> keras.Model:
        """Returns the trained model, from the student's inputs to a logit per class."""

    def build_model(self) -> keras.Model:
        """Returns the student, with the initial weights that it has without a teacher."""
        student = self.build_student()
        self.teacher = self.build_teacher()
        self.teacher.trainable = False
        return student

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Trains on one batch; logs the part of the loss that compares with the teacher as `distillation_loss`."""
        features, labels, sample_weight = self.unpack(inputs)
        weight = self.task_config.weight
        taught = ops.stop_gradient(self.teacher(features, training=False))
        weighted = {} if sample_weight is None else {"sample_weight": sample_weight}

        def loss_fn() -> tuple[Any, Any]:
            outputs = model(features, training=True)
            hard = self.build_losses(labels, outputs, **weighted)
            soft = distillation_loss(taught, outputs, self.task_config.temperature, sample_weight)
            own = sum(ops.sum(loss) for loss in model.losses)
            return (1 - weight) * hard + weight * soft + own, (outputs, soft)

        (loss, (outputs, soft)), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        self.process_metrics(metrics, labels, outputs, **weighted)
        return {self.loss: loss, "distillation_loss": soft}


def distillation_loss(teacher: Any, student: Any, temperature: float, sample_weight: Any = None) -> Any:
    """Returns T² times the mean divergence of the student's probabilities from the teacher's, both from logits."""
    wanted = ops.log_softmax(ops.cast(teacher, "float32") / temperature)
    found = ops.log_softmax(ops.cast(student, "float32") / temperature)
    divergence = ops.sum(ops.exp(wanted) * (wanted - found), axis=-1) * temperature**2
    if sample_weight is not None:
        divergence = divergence * ops.cast(sample_weight, divergence.dtype)
    return ops.mean(divergence)
