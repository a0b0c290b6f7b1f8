"""Tasks in the shapes that Model Garden's have: ported by their imports and decorators, they run."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import everstep as cfg
from everstep.config import bind, get_exp_config, get_task, registry
from everstep.config import register_experiment as register_config_factory
from everstep.config import register_task as register_task_cls

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    for name in ("_experiments", "_tasks"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def run(params, directory, steps=6, **trainer):
    every = {"steps_per_loop": 2, "validation_interval": 4, "checkpoint_interval": 4, "train_steps": steps}
    params.override({"trainer": {**every, **trainer}})
    task = get_task(params.task)
    model, logs = cfg.run_experiment(task, params, directory, verbose=False)
    return logs


# -- a loss that the model adds, a task that is bound, steps whose outputs are summed --------------------------------


class AddsLoss(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def call(self, inputs):
        outputs = self.network(inputs)
        self.add_loss(ops.mean(outputs))
        return outputs


class MockTask(cfg.Task):
    def __init__(self, params=None, logging_dir=None, name=None):
        super().__init__(params=params, logging_dir=logging_dir, name=name)

    def build_model(self, *arg, **kwargs):
        inputs = keras.layers.Input(shape=(2,), name="random", dtype="float32")
        outputs = keras.layers.Dense(1, bias_initializer=keras.initializers.Ones(), name="dense_0")(inputs)
        return AddsLoss(keras.Model(inputs=inputs, outputs=outputs))

    def build_metrics(self, training=True):
        del training
        return [keras.metrics.Accuracy(name="acc")]

    def build_inputs(self, params):
        def endless():
            while True:
                yield np.zeros((2, 2), "float32"), np.zeros((2, 1), "int32")

        return endless

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        logs["counter"] = ops.ones((), "float32")
        return logs

    def aggregate_logs(self, state, step_outputs):
        if state is None:
            state = {}
        for key, value in step_outputs.items():
            if key not in state:
                state[key] = []
            state[key].append(np.concatenate([np.expand_dims(v.numpy(), axis=0) for v in value]))
        return state

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        for key, value in aggregated_logs.items():
            aggregated_logs[key] = np.sum(np.stack(value, axis=0))
        return aggregated_logs


def test_the_mock_task(tmp_path):
    @dataclasses.dataclass
    class MockTaskConfig(cfg.TaskConfig):
        pass

    bind(MockTaskConfig)(MockTask)

    @register_config_factory("mock")
    def mock_experiment():
        return cfg.ExperimentConfig(task=MockTaskConfig(), trainer=cfg.TrainerConfig())

    logs = run(get_exp_config("mock"), tmp_path / "run", validation_steps=3)
    assert logs["counter"] == 3
    assert logs["loss"] == pytest.approx(3 * logs["validation_loss"], rel=1e-5)


# -- features and labels in one dict, metrics on the host --------------------------------------------------------------


@dataclasses.dataclass
class SentenceModelConfig(cfg.Config):
    num_classes: int = 0
    width: int = 4


@dataclasses.dataclass
class SentenceDataConfig(cfg.DataConfig):
    seq_length: int = 6
    label_field: str = "label_ids"


@dataclasses.dataclass
class SentencePredictionConfig(cfg.TaskConfig):
    metric_type: str = "accuracy"
    model: SentenceModelConfig = dataclasses.field(default_factory=SentenceModelConfig)
    train_data: cfg.DataConfig = dataclasses.field(default_factory=cfg.DataConfig)
    validation_data: cfg.DataConfig = dataclasses.field(default_factory=cfg.DataConfig)


class SentencePredictionTask(cfg.Task):
    def __init__(self, params, logging_dir=None, name=None):
        super().__init__(params, logging_dir, name=name)
        self.metric_type = params.metric_type
        self.label_field = params.train_data.label_field if hasattr(params.train_data, "label_field") else "label"

    def build_model(self):
        words = keras.Input((None,), name="input_word_ids", dtype="int32")
        mask = keras.Input((None,), name="input_mask", dtype="float32")
        hidden = keras.layers.Embedding(30, self.task_config.model.width)(words) * ops.expand_dims(mask, -1)
        outputs = keras.layers.Dense(self.task_config.model.num_classes)(ops.mean(hidden, axis=1))
        return keras.Model({"input_word_ids": words, "input_mask": mask}, outputs)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = keras.losses.sparse_categorical_crossentropy(
            labels[self.label_field], ops.cast(model_outputs, "float32"), from_logits=True
        )
        if aux_losses:
            loss += sum(aux_losses)
        return ops.mean(loss)

    def build_inputs(self, params, input_context=None):
        ids = np.random.default_rng(0).integers(0, 30, (32, params.seq_length)).astype("int32")
        mask, labels = np.ones(ids.shape, "float32"), (ids[:, :1] > 15).astype("int32")
        return {"input_word_ids": ids, "input_mask": mask, self.label_field: labels}

    def build_metrics(self, training=None):
        del training
        return [keras.metrics.SparseCategoricalAccuracy(name="cls_accuracy"), keras.metrics.AUC(name="auc")]

    def process_metrics(self, metrics, labels, model_outputs):
        for metric in metrics:
            if metric.name == "auc":
                metric.update_state(labels[self.label_field], ops.softmax(model_outputs)[:, 1:])
            if metric.name == "cls_accuracy":
                metric.update_state(labels[self.label_field], model_outputs)

    def validation_step(self, inputs, model, metrics=None):
        features, labels = inputs, inputs
        outputs = self.inference_step(features, model)
        loss = self.build_losses(labels=labels, model_outputs=outputs, aux_losses=model.losses)
        logs = {self.loss: loss}
        if metrics:
            self.process_metrics(metrics, labels, outputs)
        logs.update({m.name: m.result() for m in metrics or []})
        logs.update({"sentence_prediction": outputs, "labels": labels[self.label_field]})
        return logs

    def aggregate_logs(self, state=None, step_outputs=None):
        if self.metric_type == "accuracy":
            return None
        if state is None:
            state = {"sentence_prediction": [], "labels": []}
        for key in state:
            state[key].append(np.concatenate([v.numpy() for v in step_outputs[key]], axis=0))
        return state

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        if self.metric_type == "accuracy":
            return None
        predictions = np.argmax(np.concatenate(aggregated_logs["sentence_prediction"]), axis=1)
        labels = np.concatenate(aggregated_logs["labels"])[:, 0]
        return {self.metric_type: np.mean(predictions == labels)}

    def initialize(self, model):
        if not self.task_config.init_checkpoint:
            return


@pytest.mark.filterwarnings("ignore:.*structure of .inputs.")  # the labels are among them, and Keras says so
@pytest.mark.parametrize("metric_type", ["accuracy", "matches"])
def test_a_task_with_features_and_labels_in_one_dict(metric_type, tmp_path):
    register_task_cls(SentencePredictionConfig)(SentencePredictionTask)
    data = {"global_batch_size": 8}
    config = SentencePredictionConfig(
        metric_type=metric_type,
        model=SentenceModelConfig(num_classes=2),
        train_data=SentenceDataConfig(data, is_training=True),
        validation_data=SentenceDataConfig(data, is_training=False),
    )
    logs = run(cfg.ExperimentConfig(task=config), tmp_path / "run")
    assert {"validation_loss", "cls_accuracy", "auc"} <= set(logs)
    if metric_type != "accuracy":
        assert logs[metric_type] == pytest.approx(logs["cls_accuracy"])
