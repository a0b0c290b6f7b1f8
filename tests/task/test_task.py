"""`Task`: its default methods, and tasks written as in Model Garden."""

import keras
import numpy as np
import pytest
from keras import ops

import everstep
from everstep.engine.backend import create_engine
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError
from everstep.optim import OptimizationConfig
from everstep.task.classification import ClassificationTask
from everstep.task.config import TaskConfig
from everstep.task.task import unpack
from everstep.testing import models
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import Regression, running, seeded
from everstep.tracking import Tracker

pytestmark = pytest.mark.backend

SGD = {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}}}


class Minimal(everstep.Task):
    def build_inputs(self, params, input_context=None):
        return None


class Initialized(Regression):
    def __init__(self, path):
        super().__init__()
        self._task_config = TaskConfig(init_checkpoint=str(path))


def test_only_build_inputs_must_be_written():
    with pytest.raises(TypeError, match="build_inputs"):
        everstep.Task()
    assert Minimal().build_metrics() == []
    with pytest.raises(UsageError) as caught:
        Minimal().build_model()
    assert (caught.value.key, caught.value.reason) == ("Minimal", "has no model")
    assert str(caught.value) == "Minimal: has no model: write build_model()"


@pytest.mark.parametrize("base", [everstep.Hook, everstep.Stream, everstep.Task, Tracker])
def test_a_subclass_may_have_methods_of_any_private_name(base):
    """A base class whose own methods had such names would call those of its users instead."""
    names = {name for cls in base.__mro__[:-1] for name in vars(cls) if name.startswith("_") and "__" not in name}
    assert names <= {"_abc_impl"}


def test_config_directory_and_name_of_a_task():
    config = TaskConfig()
    task = Minimal(config, logging_dir="logs", name="mine")
    assert (task.task_config, task.logging_dir, task.name) == (config, "logs", "mine")
    assert (Minimal().logging_dir, Minimal().name) == ("", "Minimal")
    with pytest.raises(AttributeError):
        task.task_config = None


def test_the_default_loss_is_that_of_the_model():
    assert float(Minimal().build_losses(None, None, aux_losses=[np.array(1.0), np.array([2.0, 3.0])])) == 6
    for nothing in (None, []):
        with raises_problem(key="Minimal", reason="has no loss", remedy="write build_losses"):
            Minimal().build_losses(None, None, aux_losses=nothing)


def test_unpack():
    """Missing labels are None; a dict is not used as its own labels."""
    assert unpack({"a": 1}) == ({"a": 1}, None, None)
    assert unpack(("x",)) == ("x", None, None)
    assert unpack(("x", "y")) == ("x", "y", None)
    assert unpack(["x", "y", "w"]) == ("x", "y", "w")


def test_initial_weights_come_from_a_file(tmp_path):
    source = seeded(models.mlp, 5)
    source.save_weights(tmp_path / "a.weights.h5")
    source.save(tmp_path / "a.keras")
    for name in ("a.weights.h5", "a.keras"):
        model = seeded(models.mlp, 6)
        Initialized(tmp_path / name).initialize(model)
        for one, other in zip(model.get_weights(), source.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    untouched = model.get_weights()
    Initialized("").initialize(model)
    np.testing.assert_array_equal(model.get_weights()[0], untouched[0])


def test_initial_weights_that_cannot_be_loaded(tmp_path):
    (tmp_path / "a.txt").write_text("")
    models.cnn().save_weights(tmp_path / "other.weights.h5")
    for name, reason in [("none.keras", "no such file"), ("a.txt", "no weights"), ("other.weights.h5", "does not fit")]:
        with raises_problem(key="task.init_checkpoint", received=str(tmp_path / name), reason=reason):
            Initialized(tmp_path / name).initialize(models.mlp())


def test_training_starts_from_initialized_weights(tmp_path):
    source = seeded(models.linear)
    source.set_weights([np.full((4, 1), 3.0)])
    source.save_weights(tmp_path / "a.weights.h5")
    task, model = Initialized(tmp_path / "a.weights.h5"), seeded(models.linear)
    with running(create_engine, task, model, keras.optimizers.SGD(0.0)) as rig:
        rig.engine.push()
        task.initialize(model)
        rig.engine.pull()
        rig.run(1)
        np.testing.assert_array_equal(rig.value("model/dense/kernel"), np.full((4, 1), 3.0))


@pytest.mark.parametrize(
    ("dtype", "scale", "expected"),
    [("float32", None, None), ("bfloat16", 4.0, None), ("float16", None, 2.0**15), ("float16", 64.0, 64.0)],
)
def test_float16_brings_loss_scaling(dtype, scale, expected):
    runtime = RuntimeConfig(mixed_precision_dtype=dtype, loss_scale=scale)
    optimizer = everstep.Task.create_optimizer(OptimizationConfig(SGD), runtime)
    if expected is None:
        assert isinstance(optimizer, keras.optimizers.SGD)
    else:
        assert optimizer.initial_scale == expected
        assert isinstance(optimizer.inner_optimizer, keras.optimizers.SGD)


@pytest.mark.parametrize("scale", ["dynamic", 128.0])
def test_float16_trains_with_the_optimizer_of_the_task(scale):
    runtime = RuntimeConfig(mixed_precision_dtype="float16", loss_scale=scale)
    optimizer = everstep.Task.create_optimizer(OptimizationConfig(SGD), runtime)
    layers = [keras.layers.Dense(8, "tanh", dtype="mixed_float16"), keras.layers.Dense(1, dtype="mixed_float16")]
    model = seeded(lambda: keras.Sequential([keras.Input((4,)), *layers]))
    with running(create_engine, Regression(), model, optimizer) as rig:
        rig.run(3)
        first = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(30)
        assert rig.engine.read("train")["loss"] < first
        assert scale == "dynamic" or rig.value("dynamic_scale") == scale


class Three(ClassificationTask):
    def build_inputs(self, params, input_context=None):
        return None


def test_classification_is_cross_entropy_and_accuracy():
    logits, labels = np.array([[4.0, 0, 0], [0, 4, 0]], "float32"), np.array([0, 2])
    losses = -np.log(np.exp([4.0, 0.0]) / (np.exp(4.0) + 2))
    assert float(Three().build_losses(labels, logits)) == pytest.approx(losses.mean(), rel=1e-5)
    assert float(Three().build_losses(labels, logits, aux_losses=[ops.ones((2,))])) == pytest.approx(losses.mean() + 2)
    weighted = Three().build_losses(labels, logits, sample_weight=np.array([1, 0]))
    assert float(weighted) == pytest.approx(losses[0] / 2, rel=1e-5)
    model = seeded(lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    x = np.random.default_rng(0).normal(size=(40, 4))
    with running(create_engine, Three(), model, data=(x, x[:, :3].argmax(1))) as rig:
        rig.run(100)
        assert rig.evaluate((x, x[:, :3].argmax(1)))["accuracy"] > 0.5


# -- tasks written as in Model Garden ----------------------------------------------------------------------------------


class Sparing(Regression):
    """Methods without the arguments that they do not need."""

    def build_inputs(self, params):
        return params

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="mae")] if training else []

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.reshape(super().build_losses(labels, model_outputs, aux_losses), (1,))

    def validation_step(self, inputs, model):
        x, y = inputs
        return {self.loss: self.build_losses(y, self.inference_step(x, model))}


class Contextual(Regression):
    def build_inputs(self, params, input_context):
        return params, input_context


class AnyContext(Regression):
    def build_inputs(self, *args):
        return args


def test_build_inputs_with_and_without_an_input_context():
    assert Sparing().inputs_for(3) == 3
    assert Contextual().inputs_for(3) == AnyContext().inputs_for(3) == (3, None)


def test_a_validation_step_without_metrics_and_a_loss_with_an_axis():
    with running(create_engine, Sparing(), models.mlp()) as rig:
        rig.run(20)
        logs = rig.engine.read("train")
        assert set(logs) >= {"loss", "mae"}
        assert set(rig.evaluate(rig.stream.arrays)) == {"loss"}


def test_metrics_that_a_validation_step_cannot_update_are_refused():
    class Careless(Sparing):
        def build_metrics(self, training=True):
            return [keras.metrics.MeanAbsoluteError(name="mae")]

    reason = "cannot update the metrics 'mae'"
    refused = raises_problem(key="Careless.validation_step", reason=reason)
    with refused, running(create_engine, Careless(), models.mlp()):
        pass


def test_a_step_may_return_the_results_of_its_metrics():
    class Reporting(Regression):
        def train_step(self, inputs, model, optimizer, metrics):
            logs = super().train_step(inputs, model, optimizer, metrics)
            return {**logs, **{metric.name: metric.result() for metric in metrics}}

    rates = []
    for task in (Regression(), Reporting()):
        keras.utils.set_random_seed(0)
        with running(create_engine, task, models.mlp()) as rig:
            rig.run(5)
            rates.append(rig.engine.read("train"))
    assert rates[0] == rates[1]


def test_summaries_in_a_step_are_refused():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("they are TensorFlow's")
    import tensorflow as tf

    class Summarizing(Regression):
        def train_step(self, inputs, model, optimizer, metrics):
            logs = super().train_step(inputs, model, optimizer, metrics)
            tf.summary.scalar("loss", logs[self.loss])
            return logs

    refused = raises_problem(reason="tf.summary is called in a step", remedy="return the scalar")
    with refused, running(create_engine, Summarizing(), models.mlp()):
        pass


def test_summaries_in_a_step_go_to_a_default_writer(tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("they are TensorFlow's")
    import tensorflow as tf

    class Summarizing(Regression):
        def train_step(self, inputs, model, optimizer, metrics):
            tf.summary.scalar("seen", 1.0, step=optimizer.iterations.value)
            return super().train_step(inputs, model, optimizer, metrics)

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(), running(create_engine, Summarizing(), models.mlp()) as rig:
        rig.run(3)
    writer.close()
    (file,) = tmp_path.iterdir()
    events = [event for event in tf.compat.v1.train.summary_iterator(str(file)) if event.summary.value]
    assert [event.step for event in events] == [0, 1, 2]
