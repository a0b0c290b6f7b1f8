"""`everstep.fit(export=…)`: which formats of the trained model a run writes."""

import keras
import numpy as np
import pytest
from keras import layers

import everstep as es
from everstep.cli.main import main
from everstep.errors import UsageError
from everstep.export.model_export import FORMATS

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
SERVED = "torch" if keras.backend.backend() == "torch" else "saved_model"
"""The format for serving of this backend."""


def linear_model():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def exports_of_fit(directory, **arguments):
    es.fit(linear_model(), X, X[:, :1], epochs=1, verbose=0, seed=0, model_dir=directory, **arguments)
    return sorted(path.name for path in directory.glob("export/*"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fit_export") / "run"
    exports_of_fit(directory)
    return directory


def test_a_run_writes_model_keras_alone(run):
    assert [path.name for path in (run / "export").iterdir()] == ["model.keras"]


def test_other_formats_when_they_are_asked_for(tmp_path):
    assert exports_of_fit(tmp_path / "one", export=SERVED) == [FORMATS[SERVED]]
    assert exports_of_fit(tmp_path / "none", export=[]) == []


def test_a_finished_run_writes_what_the_same_call_asks_for_later(tmp_path):
    assert exports_of_fit(tmp_path / "run") == ["model.keras"]
    assert exports_of_fit(tmp_path / "run", export=["keras", SERVED]) == ["model.keras", FORMATS[SERVED]]


@pytest.mark.daily("torch", "jax")
def test_the_command_writes_formats_of_a_finished_run(run, tmp_path, capsys):
    assert main(["export", str(run), "--format", SERVED, "--out", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "one" / FORMATS[SERVED])]
    assert main(["export", str(run), "--out", str(tmp_path / "all")]) == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"model.keras", FORMATS[SERVED]}


def test_the_command_refuses_a_format_that_the_model_cannot_have(run, tmp_path, capsys):
    for name in ("preset", "saved-model"):
        assert main(["export", str(run), "--format", name, "--out", str(tmp_path / "out")]) == 2
        assert "--format" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@keras.saving.register_keras_serializable("test_fit_export")
class Doubled(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(1)

    def call(self, x):
        return 2 * self.dense(x)


def test_the_command_says_how_a_model_without_declared_inputs_gets_other_formats(tmp_path, capsys):
    def train(**arguments):
        model = Doubled()
        model.compile("sgd", "mse")
        es.fit(model, X, X[:, :1], verbose=0, seed=0, model_dir=tmp_path / "run", **arguments)

    train()
    assert main(["export", str(tmp_path / "run"), "--format", SERVED]) == 2
    assert "export=[…]" in capsys.readouterr().err
    train(export=SERVED)
    assert (tmp_path / "run" / "export" / FORMATS[SERVED]).exists()


@pytest.mark.parametrize(
    ("export", "received"),
    [
        ("saved-model", "saved-model"),
        (["keras", "onnx"], "onnx"),
        (["saved_model" if SERVED == "torch" else "torch"], "saved_model" if SERVED == "torch" else "torch"),
        ("preset", "preset"),
        (True, True),
        ([3], 3),
        ([["keras"]], ["keras"]),
    ],
)
def test_formats_that_cannot_be_written_are_refused_before_training(tmp_path, export, received):
    with pytest.raises(UsageError) as error:
        exports_of_fit(tmp_path / "run", export=export)
    assert (error.value.key, error.value.received) == ("export", received)
    assert not (tmp_path / "run").exists()


def test_a_format_without_a_directory_is_refused():
    with pytest.raises(UsageError) as error:
        es.fit(linear_model(), X, X[:, :1], verbose=0, export=["keras", SERVED])
    assert (error.value.key, error.value.received) == ("export", SERVED)
    assert "model_dir" in error.value.remedy


def test_the_closest_name_is_named():
    with pytest.raises(UsageError) as error:
        es.fit(linear_model(), X, X[:, :1], verbose=0, export="savedmodel")
    assert "saved_model" in error.value.remedy
