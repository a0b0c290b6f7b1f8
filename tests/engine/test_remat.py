"""`runtime.remat`: activations that are recomputed give the same numbers, with less memory."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep as es
from everstep.data.config import DataConfig
from everstep.engine.remat import rematerialize
from everstep.errors import UsageError
from everstep.task.grad import value_and_grad

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")


def blocks(count=2, width=8):
    """A model of blocks with all kinds of state: dropout, batch normalization, losses of its activations."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((6, 8))
    for index in range(count):
        y = block = keras.Input((6, 8))
        y = layers.Dense(width, "gelu", activity_regularizer=keras.regularizers.L2(0.01), name="widen")(y)
        y = layers.Dropout(0.3, seed=index)(y)
        y = layers.BatchNormalization()(layers.Dense(8, name="narrow")(y))
        x = x + keras.Model(block, y, name=f"block_{index}")(x)
    return keras.Model(inputs, layers.Dense(1, name="head")(x))


def two_steps(model):
    """Losses and gradients of two steps, and what is left in the model's variables."""
    found = []

    def loss_fn():
        return ops.mean(model(ops.convert_to_tensor(X), training=True) ** 2) + sum(model.losses)

    for _ in range(2):
        loss, grads = value_and_grad(loss_fn, model.trainable_variables)
        found += [loss, *grads]
    return [ops.convert_to_numpy(value) for value in (*found, *model.variables)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("full", ["block_0", "block_1", "head"], marks=pytest.mark.daily("torch", "tensorflow")),
        pytest.param(["narrow", "block_0"], ["block_0", "narrow"], marks=pytest.mark.daily("torch")),
        ("none", []),
    ],
)
def test_same_losses_gradients_and_state(wanted, expected):
    plain, model = blocks(), blocks()
    named = rematerialize(model, wanted)
    assert sorted(name for name in named if not name.startswith("add")) == expected
    for before, after in zip(two_steps(plain), two_steps(model), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_unknown_layers_are_refused():
    with pytest.raises(UsageError) as caught:
        rematerialize(blocks(), ["blok"])
    assert (caught.value.key, caught.value.received) == ("runtime.remat", "blok")
    assert "block_0" in caught.value.remedy


class Blocks(es.Task):
    def build_model(self):
        return blocks(count=1)

    def build_inputs(self, params, input_context=None):
        return X, X[:, :, :1]

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean((labels - model_outputs) ** 2) + sum(aux_losses)


def outcome_of_training(directory, steps, remat=("block",)):
    data = DataConfig(global_batch_size=4)
    # Not Adam: it turns the rounding of a gradient that should be zero into a step.
    trainer = es.TrainerConfig(train_steps=steps, steps_per_loop=2, validation_interval=4, checkpoint_interval=2)
    trainer.override({"optimizer_config": {"optimizer": {"type": "sgd"}}})
    task = es.TaskConfig(train_data=data, validation_data=data)
    params = es.ExperimentConfig(task=task, trainer=trainer, runtime=es.RuntimeConfig(remat=list(remat)))
    model, logs = es.run_experiment(Blocks(task), params, directory, export=False, verbose=False)
    return [ops.convert_to_numpy(variable) for variable in model.variables], logs["validation_loss"]


@pytest.mark.daily("torch", "tensorflow")
def test_in_a_run_and_after_a_resume(tmp_path):
    whole, loss = outcome_of_training(tmp_path / "whole", 4)
    outcome_of_training(tmp_path / "parts", 2)
    parts, _ = outcome_of_training(tmp_path / "parts", 4)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)
    assert loss == pytest.approx(outcome_of_training(tmp_path / "plain", 4, ())[1], rel=1e-5)
    assert '"remat": [' in (tmp_path / "whole" / "run.json").read_text()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX shows what is stored for the backward pass")
def test_less_is_stored_for_the_backward_pass():
    import jax

    def stored_bytes(wanted):
        model = blocks(count=2, width=512)
        rematerialize(model, wanted)
        values = [[v.value for v in held] for held in (model.trainable_variables, model.non_trainable_variables)]

        def loss(trainable):
            return ops.mean(model.stateless_call(trainable, values[1], batch, training=True)[0] ** 2)

        batch = np.zeros((256, 6, 8), "float32")
        stored = jax.eval_shape(lambda trainable: jax.vjp(loss, trainable)[1], values[0])
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stored))

    assert stored_bytes(["block"]) < 0.2 * stored_bytes(None)
