import hashlib
from importlib import resources

import numpy as np
import pytest

import everstep as es
from everstep.recipes import mnist
from everstep.recipes.mnist_data import load_mnist

pytestmark = pytest.mark.slow

# As published with the database.
DIGITS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
EXPERIMENTS = ["mnist/mlp", "mnist/quick", "mnist/cnn", "mnist/local"]


@pytest.mark.parametrize("split", DIGITS)
def test_data(split):
    images, labels = load_mnist(split)
    count = sum(DIGITS[split])
    assert (images.shape, images.dtype) == ((count, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((count,), np.uint8)
    assert np.bincount(labels).tolist() == DIGITS[split]
    assert (images.min(), images.max()) == (0, 255)


def test_data_is_the_file_that_its_readme_describes():
    folder = resources.files("everstep.recipes") / "data"
    sha = hashlib.sha256((folder / "mnist.npz").read_bytes()).hexdigest()
    assert sha in (folder / "README.md").read_text("utf-8")


def test_unknown_split():
    with pytest.raises(KeyError):
        load_mnist("validation")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_complete(name):
    config = es.get_exp_config(name)
    config.validate()
    assert isinstance(config.task, mnist.MnistConfig)
    rate = config.trainer.with_learning_rate_length().optimizer_config.learning_rate.get()
    assert rate.decay_steps == config.trainer.train_steps


@pytest.mark.backend
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_task(kind):
    config = es.get_exp_config("mnist/local").task
    config.override({"model": {"kind": kind}, "num_samples": 100})
    task = es.get_task(config)
    images, labels = task.build_inputs(config.train_data)
    assert (images.shape, images.dtype, labels.dtype) == ((100, 28, 28), np.float32, np.int32)
    assert (images.min(), images.max()) == (0, 1)
    assert len(task.build_inputs(config.validation_data)[0]) == 10_000  # always the whole test split
    assert task.build_model()(images[:2]).shape == (2, 10)
