"""Several tasks on one model: what a step changes, what is reported, and the same bits in any split of steps."""

import functools
import json
import math

import keras
import numpy as np
import pytest
from keras import ops

import everstep
from everstep.data import InputReader
from everstep.errors import UsageError
from everstep.task.grad import switch
from everstep.task.multitask.config import ProportionalConfig
from everstep.task.multitask.streams import TaskSampler
from everstep.task.multitask.task import MultiTask
from everstep.task.task import Task
from everstep.testing.problems import raises_problem

from .samples import Part, PartConfig, heads, pair_config, params_of, state_digest, trainer_of

pytestmark = pytest.mark.backend


class Plain(MultiTask):
    """Both tasks on a model without dropout."""

    def build_model(self):
        return heads()


def with_long_calls(trainer):
    """Makes calls hold many steps from the start."""
    while trainer.engine.call_length.measuring:
        trainer.engine.call_length.record(1e-4)
    return trainer


@pytest.mark.parametrize("mode", ["interleaving", pytest.param("joint", marks=pytest.mark.full)])
def test_the_same_bits_in_long_calls_single_steps_and_after_a_resume(mode):
    config = pair_config(mode=mode, batches=(8, 4))
    whole = with_long_calls(trainer_of(config, evaluate=False))
    whole.train(20)
    first = trainer_of(config, evaluate=False)
    first.step_by_step()
    first.train(7)
    state, meta = first.state()
    second = with_long_calls(trainer_of(config, evaluate=False))
    second.restore(state, json.loads(json.dumps(meta)))
    logs = second.train(13, new_window=False)
    assert state_digest(second) == state_digest(whole)
    assert logs == whole.window_logs()
    assert second.engine.compilations < 13
    for trainer in (whole, first, second):
        trainer.close()


def test_combined_batches_cannot_live_on_the_device():
    config = pair_config(batches=(8, 4))
    config.task_routines[1].task_config.override({"train_data": {"cache": "device"}})
    with raises_problem(
        key="task.task_routines[1].task_config.train_data.cache", received="device", reason="combined on the host"
    ):
        trainer_of(config, evaluate=False)


def drawn_at(step):
    """Returns the task that a step trains if both have the same weight."""
    return ("one", "two")[TaskSampler([1.0, 1.0], ProportionalConfig().exponent, seed=0).draw(step)]


def test_a_step_changes_only_what_its_task_depends_on():
    trainer = trainer_of(pair_config(), evaluate=False)
    drawn, before = [], trainer.engine.state()
    for step in range(6):
        trainer.train(1)
        after = trainer.engine.state()
        changed = {key.split("/")[1] for key in after if key.startswith("model/") and np.any(after[key] != before[key])}
        drawn.append(drawn_at(step))
        assert changed == {"trunk", "seed_generator", drawn[-1]}
        other = "two" if drawn[-1] == "one" else "one"
        slots = [key for key in after if key.startswith(f"optimizer/model/{other}/")]
        assert len(slots) == 4
        assert all(np.array_equal(after[key], before[key]) for key in slots)
        before = after
    assert set(drawn) == {"one", "two"}
    assert before["optimizer/iteration"] == 6
    trainer.close()


def test_joint_training_uses_the_weighted_sum_of_losses():
    trainer = trainer_of(pair_config(mode="joint", weights=(1.0, 0.25)), Plain, evaluate=False)
    _, batches = trainer.train_stream.layout.unpack(trainer.train_stream.peek())
    model, optimizer = keras.models.clone_model(trainer.model), keras.optimizers.Adam(0.01)
    model.set_weights(trainer.model.get_weights())

    def loss_fn():
        losses = [ops.mean(ops.subtract(model(x)[name], y) ** 2) for name, (x, y) in batches.items()]
        return losses[0] + 0.25 * losses[1], losses

    (loss, losses), grads = everstep.value_and_grad(loss_fn, model.trainable_variables)
    optimizer.apply(grads, model.trainable_variables)
    logs = trainer.train(1)
    trainer.close()
    assert logs["training_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert logs["one/training_loss"] == pytest.approx(float(losses[0]), rel=1e-5)
    assert logs["two/training_loss"] == pytest.approx(float(losses[1]), rel=1e-5)
    for mine, theirs in zip(trainer.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


class Unread(Part):
    """A task without training data."""

    def build_inputs(self, params, input_context=None):
        assert not params.is_training
        return super().build_inputs(params)


def test_one_task_is_trained_and_both_are_evaluated():
    config = pair_config(weights=(0.5, 0.0))
    routines = config.task_routines
    tasks = {"one": Part(routines[0].task_config), "two": Unread(routines[1].task_config)}
    trainer = trainer_of(config, Plain, tasks)
    before = trainer.engine.state()
    assert not [name for name in trainer.train(4) if name.startswith("two")]
    after = trainer.engine.state()
    assert np.array_equal(after["model/two/kernel"], before["model/two/kernel"])
    logs = trainer.evaluate()
    trainer.close()
    for name, task in tasks.items():
        x, y = task.build_inputs(routines[0].task_config.validation_data.replace(is_training=False))
        error = ops.convert_to_numpy(trainer.model(x)[name]) - y
        assert logs[f"{name}/validation_loss"] == pytest.approx(np.mean(error**2), rel=1e-4)
        assert logs[f"{name}/mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-4)
    assert logs["validation_loss"] == pytest.approx(0.5 * logs["one/validation_loss"])
    assert next(iter(logs)) == "validation_loss"


class Lossless(Part):
    """Reports only its metrics."""

    def validation_step(self, inputs, model, metrics):
        self.process_metrics(metrics, inputs[1], self.inference_step(inputs[0], model))
        return {}


@pytest.mark.parametrize(
    ("classes", "settings"),
    [
        ((Part, Part), {"weights": (1.0, 0.0), "eval_steps": (0, None)}),
        ((Lossless, Lossless), {}),
    ],
)
def test_no_sum_of_losses_without_a_loss(classes, settings):
    config = pair_config(**settings)
    trainer = trainer_of(config, Plain, created(config, *classes))
    logs = trainer.evaluate()
    trainer.close()
    assert "validation_loss" not in logs
    assert "two/mae" in logs


@pytest.mark.parametrize(
    ("mode", "batches", "samples"),
    [("joint", (8, 4), 12), ("interleaving", (8, 8), 8), ("interleaving", (8, 4), None)],
)
def test_samples_of_a_step(mode, batches, samples):
    task = Plain(pair_config(mode=mode, batches=batches))
    stream = task.build_inputs(everstep.DataConfig(is_training=True))
    assert task.samples_per_step(stream.peek()) == samples


@pytest.mark.full
def test_a_task_without_a_step_reports_nan():
    trainer = trainer_of(pair_config(weights=(1.0, 1e-12)), Plain)
    logs = trainer.train(4)
    assert math.isnan(logs["two/training_loss"])
    assert math.isnan(logs["two/mae"])
    assert logs["training_loss"] == pytest.approx(logs["one/training_loss"])
    assert math.isnan(trainer.evaluate(1)["two/validation_loss"])
    assert math.isfinite(trainer.evaluate(2)["validation_loss"])
    trainer.close()


def test_each_branch_of_a_switch_is_traced_at_most_twice():
    total, calls = keras.Variable(0.0, trainable=False), []

    def branch(number):
        calls.append(number)
        total.assign(total + number)
        return ops.cast(number, "float32")

    branches = [functools.partial(branch, number) for number in range(8)]
    assert float(switch(ops.convert_to_tensor(5), branches)) == float(ops.convert_to_numpy(total.value)) == 5
    assert len(calls) <= 2 * len(branches)  # once to find what they assign, once to run


class Noisy(Part):
    """Overrides the step, which draws random numbers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(3)

    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        noisy = x + keras.random.normal(x.shape, stddev=0.1, seed=self.noise)
        return super().train_step((noisy, y), model, optimizer, metrics)


def test_attributes_of_a_task_belong_to_the_state():
    config = pair_config()
    trainer = trainer_of(config, Plain, created(config, Noisy, Part), evaluate=False)
    trainer.train(8)
    draws = [drawn_at(step) for step in range(8)].count("one")
    assert trainer.engine.state()["task.parts/one/noise/seed"][1] == draws
    trainer.close()


class Talkative(Part):
    """Returns a further scalar, and has a metric that is built on its first use."""

    def train_step(self, inputs, model, optimizer, metrics):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "largest": ops.max(inputs[0])}

    def build_metrics(self, training=True):
        return [*super().build_metrics(training), keras.metrics.R2Score(name="r2")]


@pytest.mark.full
def test_scalars_and_metrics_that_are_created_in_a_step():
    config = pair_config()
    trainer = trainer_of(config, Plain, created(config, Talkative, Part))
    assert {"one/largest", "one/r2", "one/mae", "two/mae"} <= set(trainer.train(8))
    assert {"one/r2", "one/mae", "two/mae"} <= set(logs := trainer.evaluate())
    assert "two/r2" not in logs
    trainer.close()


# -- errors ----------------------------------------------------------------------------------------------------------


class Gathering(Part):
    def aggregate_logs(self, state, step_outputs):
        return None


def created(config, *classes):
    return {r.task_name: cls(r.task_config) for r, cls in zip(config.task_routines, classes, strict=True)}


@pytest.mark.parametrize(
    ("mode", "cls", "reason"),
    [
        ("joint", Noisy, "overrides train_step"),
        ("interleaving", Gathering, "aggregates its logs on the host"),
    ],
)
def test_tasks_that_cannot_be_combined(mode, cls, reason):
    config = pair_config(mode=mode)
    with pytest.raises(UsageError) as caught:
        MultiTask(config, tasks=created(config, cls, Part))
    assert caught.value.key == "task 'one'"
    assert caught.value.reason.startswith(reason)


def test_tasks_must_be_those_of_the_routines():
    config = pair_config()
    with raises_problem(key="tasks", received=["two", "one"], reason=r"but task_routines names \['one', 'two'\]"):
        MultiTask(config, tasks=dict(reversed(created(config, Part, Part).items())))


def test_a_missing_output():
    config = pair_config()
    config.override({"task_routines[1]": {"task_name": "three"}})
    with raises_problem(key="task_routines", reason="but none for the tasks 'three'"):
        trainer_of(config, Plain)


class Compiled(MultiTask):
    def build_model(self):
        model = heads()
        model.compile("sgd", "mse")
        return model


def test_a_compiled_model():
    with raises_problem(key="model", reason="is compiled, with one loss for all tasks"):
        trainer_of(pair_config(), Compiled)


def test_nothing_to_evaluate():
    with raises_problem(key="task.validation_data.task_routines", reason="every eval_steps is 0"):
        trainer_of(pair_config(eval_steps=(0, 0)), Plain)


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="works elsewhere")
def test_part_of_a_model_in_float16(tmp_path):
    config = pair_config()
    params = params_of(config)
    params.override({"runtime": {"mixed_precision_dtype": "float16"}})
    with raises_problem(key="runtime.mixed_precision_dtype", reason="float16 updates all weights"):
        everstep.run_experiment(Plain(config), params, tmp_path, "train", verbose=False)


class Labelled(Part):
    label_classes = 3

    def build_inputs(self, params, input_context=None):
        x, _ = super().build_inputs(params)
        return x, np.full(len(x), 3)


def test_labels_out_of_range_name_the_task():
    config = pair_config()
    with raises_problem(
        key="task.task_routines[1].task_config.train_data", reason="the labels must be whole numbers from 0 to 2"
    ):
        trainer_of(config, Plain, created(config, Part, Labelled))


def test_tasks_are_created_from_their_configurations():
    task = everstep.get_task(pair_config())
    assert type(task) is MultiTask
    assert [type(part) for part in task.tasks.values()] == [Part, Part]
    assert isinstance(task.tasks["two"], Task)
    assert isinstance(task.tasks["two"].task_config, PartConfig)
    assert task.tasks["two"].name == "two"


class Shared(MultiTask):
    """One model with one output for both tasks."""

    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def test_a_model_with_a_single_output_is_shared_by_all_tasks():
    task = Shared(pair_config())
    model = task.build_model()
    assert list(task.models(model).values()) == [model, model]


def test_a_model_may_list_the_models_of_its_tasks():
    model = heads()
    model.sub_tasks = {"one": Shared(pair_config()).build_model(), "two": model}
    assert Shared(pair_config()).models(model) == {"one": model.sub_tasks["one"], "two": model}


class Recorded(Part):
    def build_inputs(self, params, input_context=None):
        return InputReader(params).read(input_context)


def test_missing_data_is_reported_with_its_key():
    config = pair_config()
    config.task_routines[1].task_config.train_data.input_path = "none-*.tfrecord"
    with pytest.raises(UsageError) as refused:
        trainer_of(config, Plain, created(config, Part, Recorded))
    assert refused.value.key == "task.task_routines[1].task_config.train_data.input_path"
    assert refused.value.received == "none-*.tfrecord"
