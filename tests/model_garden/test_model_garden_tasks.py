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
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

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


# -- what answers a mistake --------------------------------------------------------------------------------------------

POINTS = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class PointsTask(cfg.Task):
    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])

    def build_inputs(self, params, input_context=None):
        return POINTS, POINTS

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean(ops.square(labels - model_outputs))


def learn(task_cls, directory):
    data = {"global_batch_size": 8}
    params = cfg.ExperimentConfig({"task": {"train_data": data, "validation_data": data}})
    params.override({"trainer": {"train_steps": 2, "optimizer_config": {"optimizer": {"type": "sgd"}}}})
    return cfg.run_experiment(task_cls(params.task), params, directory, verbose=False)[1]


def test_the_step_that_aggregated_logs_are_reduced_at_has_numpy(tmp_path):
    class Counts(PointsTask):
        def aggregate_logs(self, state, step_outputs):
            return (state or 0) + 1

        def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
            return {"step": global_step.numpy(), "next": global_step + 1}

    logs = learn(Counts, tmp_path / "run")
    assert (logs["step"], logs["next"]) == (2, 3)


class LayerOfTensorFlow(keras.layers.Layer):
    def call(self, x):
        import tensorflow as tf

        return tf.nn.relu(x)


class UsesTensorFlow(PointsTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        import tensorflow as tf

        return tf.reduce_mean(model_outputs)


class ConvertsLabels(PointsTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        import tensorflow as tf

        return ops.mean(ops.square(tf.cast(labels, "float32") - model_outputs))


class ModelOfTensorFlow(PointsTask):
    def build_model(self):
        return keras.Sequential([keras.Input((4,)), LayerOfTensorFlow(), keras.layers.Dense(4)])


class UnbuiltModelOfTensorFlow(PointsTask):
    def build_model(self):
        return keras.Sequential([LayerOfTensorFlow(), keras.layers.Dense(4)])


@pytest.mark.daily("jax", "torch")
@pytest.mark.parametrize(
    ("task", "line"),
    [
        (UsesTensorFlow, "return tf.reduce_mean(model_outputs)"),
        (ConvertsLabels, 'return ops.mean(ops.square(tf.cast(labels, "float32") - model_outputs))'),
        (ModelOfTensorFlow, "return tf.nn.relu(x)"),
        (UnbuiltModelOfTensorFlow, "return tf.nn.relu(x)"),
    ],
)
def test_tensorflow_on_another_backend_is_answered_with_its_line(task, line, tmp_path):
    pytest.importorskip("tensorflow")
    if keras.backend.backend() == "tensorflow":
        pytest.skip("it is the backend")
    if keras.backend.backend() == "torch" and "Model" in task.__name__:
        pytest.skip("TensorFlow takes the tensors of PyTorch, and Keras its own")
    with pytest.raises(UsageError) as refused:
        learn(task, tmp_path / "run")
    assert refused.value.key == task.__name__
    assert "calls TensorFlow on a tensor" in refused.value.reason
    assert "keras.ops" in refused.value.remedy
    assert refused.value.remedy.endswith(line)
    assert f"{__file__}:" in refused.value.remedy


class UsesNumPy(PointsTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return np.mean(np.square(labels - model_outputs))


class AsksForNumPy(PointsTask):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean(model_outputs.numpy())


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (UsesNumPy, "return np.mean(np.square(labels - model_outputs))"),
        (AsksForNumPy, "return ops.mean(model_outputs.numpy())"),
    ],
)
def test_numpy_in_a_step_is_answered_with_its_line(task, line, tmp_path):
    with pytest.raises(UsageError) as refused:
        learn(task, tmp_path / "run")
    assert refused.value.key == task.__name__
    assert "converts a tensor to NumPy in a step" in refused.value.reason
    assert refused.value.remedy.endswith(line)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize("model", [PointsTask.build_model, lambda self: Subclassed()], ids=["inputs", "no inputs"])
@pytest.mark.parametrize("kind", ["a function", "a dataset"])
def test_samples_without_batches_are_called_that(tmp_path, kind, model):
    class Unbatched(PointsTask):
        build_model = model

        def build_inputs(self, params, input_context=None):
            if kind == "a function":
                return lambda: zip(POINTS, POINTS, strict=True)
            return pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices((POINTS, POINTS))

    with pytest.raises(UsageError) as refused:
        learn(Unbatched, tmp_path / "run")
    assert refused.value.key == "x"
    assert "single samples of the shape (4,)" in refused.value.reason
    assert "dataset.batch(size)" in refused.value.remedy


def test_task_and_configuration_in_the_wrong_order_are_named():
    params = cfg.ExperimentConfig()
    for arguments in (
        (params, PointsTask(params.task), "run"),
        (None, params, "train", PointsTask(params.task), "run"),
    ):
        with pytest.raises(UsageError) as refused:
            cfg.run_experiment(*arguments)
        assert refused.value.key == "params"
        assert "got ExperimentConfig, then PointsTask" in refused.value.reason
        assert refused.value.remedy == "run_experiment(task, params, model_dir)"
    with raises_problem(key="params", reason="but got the class PointsTask, then ExperimentConfig"):
        cfg.run_experiment(PointsTask, params, "run")


# -- labels and outputs as a pair, for a metric that is computed on the host -------------------------------------------

FRAMES = np.random.default_rng(1).normal(size=(10, 3, 4)).astype("float32")
TAGS = (FRAMES.mean(axis=1)[:, :3] > 0).astype("float32")


def known_weights(model):
    """Sets the same weights on every backend."""
    for variable in model.trainable_variables:
        size = int(np.prod(variable.shape))
        variable.assign(np.linspace(-1, 1, size, dtype="float32").reshape(variable.shape))
    return model


def without_learning():
    """Returns the section of an optimizer that leaves the weights as they are."""
    return {"optimizer_config": {"optimizer": {"type": "sgd"}, "learning_rate": {"constant": {"learning_rate": 0.0}}}}


class AveragePrecision:
    """Gathers batches of labels and predictions; of each it gets one per replica."""

    name = "average_precision"

    def __init__(self):
        self.batches = []

    def accumulate(self, labels, predictions):
        labels, predictions = labels[0].numpy(), predictions[0].numpy()
        self.batches.append((labels, predictions))

    def get(self):
        labels, predictions = (np.concatenate(parts) for parts in zip(*self.batches, strict=True))
        hits = labels[np.arange(len(labels)), predictions.argmax(axis=1)]
        by_class = (labels * (predictions > 0.5)).sum(axis=0) / np.maximum(labels.sum(axis=0), 1)
        return {"avg_hit_at_one": hits.mean(), "recall": {str(i): value for i, value in enumerate(by_class)}}


class VideoClassificationTask(cfg.Task):
    """Labels and outputs under the name of a metric: `logs[name] = (labels, outputs)`."""

    def __init__(self, params=None, logging_dir=None, name=None):
        super().__init__(params, logging_dir, name=name)
        self.average_precision = AveragePrecision()

    def build_model(self):
        frames = keras.Input((3, 4))
        scores = keras.layers.Dense(3, "sigmoid")(keras.layers.GlobalAveragePooling1D()(frames))
        return known_weights(keras.Model(frames, {"predictions": scores}))

    def build_inputs(self, params, input_context=None):
        return FRAMES, TAGS

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean(keras.losses.binary_crossentropy(labels, model_outputs["predictions"]))

    def validation_step(self, inputs, model, metrics=None):
        features, labels = inputs
        outputs = self.inference_step(features, model)
        logs = {self.loss: self.build_losses(labels, outputs)}
        logs.update({self.average_precision.name: (labels, outputs["predictions"])})
        return logs

    def aggregate_logs(self, state=None, step_logs=None):
        if state is None:
            self.average_precision.batches.clear()
            state = self.average_precision
        name = self.average_precision.name
        state.accumulate(labels=step_logs[name][0], predictions=step_logs[name][1])
        return state

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return aggregated_logs.get()


def sections():
    data = {"global_batch_size": 4}
    return {"train_data": data, "validation_data": {**data, "drop_remainder": False}}


def test_a_video_classification_whose_labels_and_outputs_are_a_pair(tmp_path):
    params = cfg.ExperimentConfig({"task": sections(), "trainer": without_learning()})
    task = VideoClassificationTask(params.task)
    params.override({"trainer": {"train_steps": 2, "steps_per_loop": 2, "validation_interval": 2}})
    _, logs = cfg.run_experiment(task, params, tmp_path / "run", verbose=False)
    kernel = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    predictions = 1 / (1 + np.exp(-(FRAMES.mean(axis=1) @ kernel + [-1, 0, 1])))
    labels, outputs = (np.concatenate(parts) for parts in zip(*task.average_precision.batches, strict=True))
    assert [len(labels) for labels, _ in task.average_precision.batches] == [4, 4, 2]
    np.testing.assert_array_equal(labels, TAGS)
    np.testing.assert_allclose(outputs, predictions, rtol=1e-4, atol=1e-6)
    expected = AveragePrecision()
    expected.batches = [(TAGS, predictions)]
    assert logs["avg_hit_at_one"] == pytest.approx(expected.get()["avg_hit_at_one"])
    assert [logs[f"recall|{tag}"] for tag in range(3)] == pytest.approx(list(expected.get()["recall"].values()))


# -- a detector: labels and outputs are dicts of levels ----------------------------------------------------------------

IMAGES = np.random.default_rng(2).normal(size=(10, 8, 8, 3)).astype("float32")
BOXES = np.random.default_rng(3).uniform(size=(10, 5, 4)).astype("float32")
LEVELS = ["4", "3"]


class CocoMetric:
    """Converts what it gets as the evaluator of Model Garden does, and keeps it."""

    name = "coco_metric"

    def __init__(self):
        self.seen = []

    def update_state(self, groundtruths, predictions):
        self.seen.append((groundtruths, predictions))

    def arrays(self, tree):
        """Returns a tree of tuples, one entry per replica, as whole arrays."""
        if isinstance(tree, dict):
            return {key: self.arrays(branch) for key, branch in tree.items()}
        return np.concatenate([part.numpy() for part in tree])

    def result(self):
        seen = [self.arrays(groundtruths) for groundtruths, _ in self.seen]
        return {"AP": sum(len(one["boxes"]) for one in seen), "levels": {level: float(level) for level in LEVELS}}


class RetinaNetTask(cfg.Task):
    """Dicts of levels as labels and outputs, and both as one pair for the host."""

    def __init__(self, params=None, logging_dir=None, name=None):
        super().__init__(params, logging_dir, name=name)
        self.coco_metric = CocoMetric()

    def build_model(self):
        images = keras.Input((8, 8, 3))
        pooled = {level: keras.layers.AveragePooling2D(2 ** (int(level) - 2))(images) for level in LEVELS}
        classes, boxes = keras.layers.Dense(2), keras.layers.Dense(4)
        outputs = {
            "cls_outputs": {level: classes(features) for level, features in pooled.items()},
            "box_outputs": {level: boxes(features) for level, features in pooled.items()},
        }
        return known_weights(keras.Model(images, outputs))

    def build_inputs(self, params, input_context=None):
        targets = {level: np.zeros((10, size, size, 2), "float32") for level, size in zip(LEVELS, (2, 4), strict=True)}
        groundtruths = {"source_id": np.arange(10, dtype="int32"), "boxes": BOXES}
        return IMAGES, {"cls_targets": targets, "groundtruths": groundtruths}

    def build_losses(self, outputs, labels, aux_losses=None):
        losses = [ops.mean((outputs["cls_outputs"][level] - labels["cls_targets"][level]) ** 2) for level in LEVELS]
        return sum(losses), {"cls": losses, "total": sum(losses)}

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs

        def loss_fn():
            outputs = model(features, training=True)
            return self.build_losses(outputs=outputs, labels=labels)[0]

        loss, grads = cfg.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        return {self.loss: loss}

    def validation_step(self, inputs, model, metrics=None):
        features, labels = inputs
        outputs = self.inference_step(features, model)
        loss, losses = self.build_losses(outputs=outputs, labels=labels)
        outputs = {**outputs, "detection_boxes": labels["groundtruths"]["boxes"] * 2.0}
        logs = {self.loss: loss, self.coco_metric.name: (labels["groundtruths"], outputs)}
        return {**logs, "losses": losses, "per_level": tuple({"level": int(level), "n": 1.0} for level in LEVELS)}

    def aggregate_logs(self, state=None, step_outputs=None):
        if state is None:
            self.coco_metric.seen.clear()
            self.steps = []
        self.coco_metric.update_state(*step_outputs[self.coco_metric.name])
        self.steps.append({key: value for key, value in step_outputs.items() if key != self.coco_metric.name})
        return self.coco_metric

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return self.coco_metric.result()


def test_a_detector_whose_labels_and_outputs_are_dicts_of_levels(tmp_path):
    params = cfg.ExperimentConfig({"task": sections(), "trainer": without_learning()})
    task = RetinaNetTask(params.task)
    params.override({"trainer": {"train_steps": 2, "steps_per_loop": 2, "validation_interval": 2}})
    _, logs = cfg.run_experiment(task, params, tmp_path / "run", verbose=False)
    assert (logs["AP"], logs["levels|4"], logs["levels|3"]) == (10, 4, 3)
    assert logs["total"] == pytest.approx(logs["validation_loss"])

    metric, bias = task.coco_metric, np.linspace(-1, 1, 2)
    assert [len(one["boxes"][0]) for one, _ in metric.seen] == [4, 4, 2]
    for index, (groundtruths, predictions) in enumerate(metric.seen):
        rows = slice(4 * index, min(4 * index + 4, 10))
        assert set(groundtruths) == {"source_id", "boxes"}
        assert set(predictions) == {"cls_outputs", "box_outputs", "detection_boxes"}
        assert all(set(predictions[name]) == set(LEVELS) for name in ("cls_outputs", "box_outputs"))
        np.testing.assert_array_equal(metric.arrays(groundtruths)["source_id"], np.arange(10)[rows])
        np.testing.assert_array_equal(metric.arrays(groundtruths)["boxes"], BOXES[rows])
        arrays = metric.arrays(predictions)
        np.testing.assert_allclose(arrays["detection_boxes"], BOXES[rows] * 2, rtol=1e-6)
        pooled = IMAGES[rows].reshape(-1, 4, 2, 4, 2, 3).mean(axis=(2, 4))
        kernel = np.linspace(-1, 1, 6).reshape(3, 2)
        np.testing.assert_allclose(arrays["cls_outputs"]["3"], pooled @ kernel + bias, rtol=1e-4, atol=1e-5)
        step = task.steps[index]
        assert [{key: part[0].item() for key, part in one.items()} for one in step["per_level"]] == [
            {"level": 4, "n": 1.0},
            {"level": 3, "n": 1.0},
        ]
        assert isinstance(step["per_level"], tuple)
        assert isinstance(step["losses"]["cls"], list)
        total = sum(part[0] for part in step["losses"]["cls"])
        np.testing.assert_allclose(total, step["losses"]["total"][0], rtol=1e-5)


def test_an_input_that_is_no_key_of_the_batch_is_answered_with_its_name(tmp_path):
    class Named(PointsTask):
        def build_model(self):
            points = keras.Input((4,), name="points")
            return keras.Model(points, keras.layers.Dense(4)(points))

        def build_inputs(self, params, input_context=None):
            return {"x": POINTS, "mask": POINTS}, POINTS

    with pytest.raises(UsageError) as refused:
        learn(Named, tmp_path / "run")
    assert refused.value.key == "x"
    assert refused.value.reason == "the model's input 'points' is no key of the batch, which has 'x', 'mask'"
    assert refused.value.remedy.endswith("keras.Input(…, name='x')")
