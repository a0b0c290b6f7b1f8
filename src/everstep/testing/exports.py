"""The contract of an export format, as checks for any implementation.

    @pytest.mark.parametrize("check", exports.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, tmp_path):
        check(MY_FORMAT.export, MY_FORMAT.load, tmp_path / MY_FORMAT.file)

The first function writes a model; the second takes the path and returns a function from a batch of inputs to outputs:
all that it knows is what was written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

Export = Callable[[keras.Model, Path, Any], None]
Load = Callable[[Path], Callable[[Any], Any]]


def _model() -> tuple[keras.Model, np.ndarray]:
    """Returns a model whose outputs depend on all of its state, and a batch."""
    keras.utils.set_random_seed(3)
    hidden = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(3)])
    random = np.random.default_rng(0)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
    return model, random.normal(size=(8, 4)).astype("float32")


def _weights(model: keras.Model) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(weight.value) for weight in model.weights]


def check_has_the_models_outputs(export: Export, load: Load, path: Path) -> None:
    """What is loaded computes what the model computes in inference."""
    model, batch = _model()
    export(model, path, batch)
    expected = keras.ops.convert_to_numpy(model(batch, training=False))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(load(path)(batch)), expected, rtol=1e-5, atol=1e-5)


def check_leaves_the_model_as_it_was(export: Export, load: Load, path: Path) -> None:
    """Writing, and comparing, changes no weight, seed or counter of the model."""
    model, batch = _model()
    before = _weights(model)
    export(model, path, batch)
    assert all(np.array_equal(a, b) for a, b in zip(before, _weights(model), strict=True))


def check_replaces_an_earlier_export(export: Export, load: Load, path: Path) -> None:
    """A second export to the same place is the one that is loaded; it leaves nothing else there."""
    model, batch = _model()
    export(model, path, batch)
    model.layers[-1].kernel.assign(-model.layers[-1].kernel.value)
    export(model, path, batch)
    expected = keras.ops.convert_to_numpy(model(batch, training=False))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(load(path)(batch)), expected, rtol=1e-5, atol=1e-5)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def check_creates_the_folder(export: Export, load: Load, path: Path) -> None:
    """The folders above the path need not exist."""
    model, batch = _model()
    export(model, path.parent / "a" / "b" / path.name, batch)
    assert (path.parent / "a" / "b" / path.name).exists()


CHECKS = [
    check_has_the_models_outputs,
    check_leaves_the_model_as_it_was,
    check_replaces_an_earlier_export,
    check_creates_the_folder,
]
"""All checks; each takes the function that exports, the one that loads, and a path."""
