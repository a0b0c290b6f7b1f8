"""One warning each for weights that no step changes, and for metrics that no step updates."""

import keras
import pytest
from keras import ops

import everstep as es
from loop.samples import TinyTask, run, tiny_params

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch"), pytest.mark.usefixtures("no_export")]


def gradients(task, x, y, model):
    return es.value_and_grad(lambda: task.build_losses(y, model(x, training=True)), model.trainable_variables)


class NeverApplied(TinyTask):
    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        loss, grads = gradients(self, x, y, model)
        self.process_metrics(metrics, y, model(x))
        return {self.loss: loss, "norm": sum(ops.sum(grad**2) for grad in grads)}


class AppliedByHand(TinyTask):
    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        loss, grads = gradients(self, x, y, model)
        for variable, grad in zip(model.trainable_variables, grads, strict=True):
            variable.assign(variable - 0.01 * grad)
        self.process_metrics(metrics, y, model(x))
        return {self.loss: loss}


class NeverUpdated(TinyTask):
    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        pass


class Frozen(TinyTask):
    def build_model(self):
        model = super().build_model()
        model.trainable = False
        return model


class AppliedSometimes(TinyTask):
    """Learns in every other step: on PyTorch the first one does not show it."""

    def __init__(self):
        super().__init__()
        self.count = keras.Variable(0.0, trainable=False, name="count")

    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        loss, grads = gradients(self, x, y, model)

        def learn():
            optimizer.apply(grads, model.trainable_variables)
            self.process_metrics(metrics, y, model(x))

        es.cond(ops.equal(self.count % 2, 1.0), learn, lambda: None)
        self.count.assign(self.count + 1)
        return {self.loss: loss}


def warned(caplog, directory, task, **trainer):
    run("train_and_eval", directory, task=task, params=tiny_params(**trainer))
    return [record.getMessage() for record in caplog.records if record.name == "everstep.loop.untouched"]


def test_a_step_that_never_applies_the_optimizer(tmp_path, caplog):
    (line,) = warned(caplog, tmp_path / "run", NeverApplied())
    assert "have changed no weight" in line
    assert "optimizer.apply" in line


def test_metrics_that_no_step_updates(tmp_path, caplog):
    lines = warned(caplog, tmp_path / "run", NeverUpdated())
    assert [line.partition(", which")[0] for line in lines] == ["no step has updated the metric 'mae'"] * 2
    assert ["train_step" in line for line in lines] == [True, False]


def test_a_model_without_trainable_weights(tmp_path, caplog):
    (line,) = warned(caplog, tmp_path / "run", Frozen())
    assert "the model has no trainable weights" in line


@pytest.mark.parametrize("task", [TinyTask, AppliedByHand, AppliedSometimes])
def test_steps_that_train_are_not_mentioned(tmp_path, caplog, task):
    assert warned(caplog, tmp_path / "run", task()) == []
