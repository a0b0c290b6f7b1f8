"""Class labels are checked if a step passes them unchanged to a sparse cross-entropy."""

import keras
import numpy as np
import pytest

import everstep
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
GOOD = np.arange(64, dtype="int32") % 4
HIGH = np.arange(64, dtype="int32") % 9
crossentropy = keras.losses.SparseCategoricalCrossentropy


def masked(y, p):
    """Ignores labels of -1, of which a batch may have none."""
    known = keras.ops.not_equal(y, -1)
    losses = keras.losses.sparse_categorical_crossentropy(keras.ops.where(known, y, 0), p, from_logits=True)
    return keras.ops.mean(losses * keras.ops.cast(known, losses.dtype))


def overwritten(y, p):
    """Ignores the same labels as programs for PyTorch do, which write into a copy."""
    known = y >= 0
    if keras.backend.backend() != "torch":
        return masked(y, p)
    labels = y.clone()
    labels.view(-1)[~known.reshape(-1)] = 0
    losses = keras.losses.sparse_categorical_crossentropy(labels, p, from_logits=True)
    return keras.ops.mean(losses * keras.ops.cast(known, losses.dtype))


LOSSES = {
    "function": lambda y, p: keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)),
    "object": lambda y, p: crossentropy(from_logits=True)(y, p),
    "operation": lambda y, p: keras.ops.mean(keras.ops.sparse_categorical_crossentropy(y, p, from_logits=True)),
    "from one": lambda y, p: crossentropy(from_logits=True)(y - 1, p),
    "masking": lambda y, p: masked(y, p),
    "overwriting": lambda y, p: overwritten(y, p),
    "ignoring": lambda y, p: crossentropy(from_logits=True, ignore_class=-1)(y, p),
}


class Classes(everstep.Task):
    def __init__(self, labels, loss, stream=False):
        super().__init__()
        self.labels, self.loss_fn, self.stream = labels, LOSSES[loss], stream

    def build_model(self):
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])

    def build_inputs(self, params, input_context=None):
        halves = [(X[i : i + 32], self.labels[i : i + 32]) for i in (0, 32)]
        return (lambda: iter(halves)) if self.stream else (X, self.labels)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return self.loss_fn(labels, model_outputs)


def train(task, directory):
    config = everstep.ExperimentConfig(trainer=everstep.TrainerConfig(train_steps=2, steps_per_loop=2))
    everstep.run_experiment(task, config, directory, "train", export=False, verbose=False)


@pytest.mark.parametrize(
    ("labels", "loss"),
    [(HIGH, "function"), (HIGH.astype("int64"), "object"), (HIGH[:, None], "operation"), (GOOD - 1, "function")],
)
def test_out_of_range(tmp_path, labels, loss):
    with pytest.raises(UsageError) as caught:
        train(Classes(labels, loss), tmp_path / "run")
    assert caught.value.key == "task.train_data"
    assert "the labels must be whole numbers from 0 to 3" in caught.value.reason
    assert not (tmp_path / "run").exists()


def test_out_of_range_in_a_stream(tmp_path):
    with raises_problem(reason="the first is 4"):
        train(Classes(HIGH, "function", stream=True), tmp_path / "run")


@pytest.mark.parametrize(("labels", "loss"), [(GOOD, "object"), (GOOD + 1, "from one"), (GOOD - 1, "ignoring")])
def test_labels_that_the_step_corrects_are_accepted(tmp_path, labels, loss):
    train(Classes(labels, loss), tmp_path / "run")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loss", ["masking", "overwriting", "ignoring"])
def test_labels_to_ignore_that_the_first_batch_does_not_have(tmp_path, loss, stream):
    train(Classes(np.where(np.arange(64) < 32, GOOD, -1), loss, stream), tmp_path / "run")


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.sparse_categorical_crossentropy,
        crossentropy(from_logits=True, name="mine"),
        ["sparse_categorical_crossentropy"],
    ],
    ids=["function", "renamed", "list"],
)
def test_compiled_models_with_any_form_of_the_loss(loss):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    model.compile("adam", loss)
    with raises_problem(key="y", reason="from 0 to 3"):
        everstep.fit(model, (X, HIGH), verbose=False)
