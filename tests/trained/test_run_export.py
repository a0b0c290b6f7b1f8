"""`everstep.export.export_model`: a model or a run's, in every format that the backend has."""

import keras
import numpy as np
import pytest
from tests.trained.predict_models import samples, train

import everstep
import everstep.export
from everstep.errors import TrainingError, UsageError
from everstep.export.model_export import serving_format

pytestmark = [
    pytest.mark.backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

X = samples(8)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export_model") / "run"
    train(directory)
    return directory


def small_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def test_a_model_in_every_format_of_the_backend(tmp_path):
    model = small_model()
    before = [weight.copy() for weight in model.get_weights()]
    name, _ = serving_format()
    assert everstep.export.export_model(model, tmp_path / "out") == [
        tmp_path / "out" / "model.keras",
        tmp_path / "out" / name,
    ]
    loaded = keras.saving.load_model(tmp_path / "out" / "model.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_model_without_declared_inputs_needs_a_sample(tmp_path):
    @keras.saving.register_keras_serializable("test_run_export")
    class Double(keras.Model):
        def call(self, x):
            return 2 * x

    model = Double()
    with pytest.raises(UsageError) as error:
        everstep.export.export_model(model, tmp_path / "out")
    assert error.value.key == "sample"
    assert not (tmp_path / "out").exists()
    model(X)
    assert everstep.export.export_model(model, tmp_path / "out", X)[0] == tmp_path / "out" / "model.keras"


@pytest.mark.daily("torch", "tensorflow")
def test_a_run_with_the_weights_of_a_checkpoint(run, tmp_path):
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    everstep.export.export_model(run, tmp_path / "last")
    everstep.export.export_model(str(run), tmp_path / "first", checkpoint=steps[0])
    outputs = {name: everstep.predict(tmp_path / name / "model.keras", X) for name in ("last", "first")}
    np.testing.assert_allclose(outputs["last"], everstep.predict(run, X), rtol=1e-5)
    np.testing.assert_allclose(outputs["first"], everstep.predict(run, X, checkpoint=steps[0]), rtol=1e-5)
    assert np.abs(outputs["first"] - outputs["last"]).max() > 0


@pytest.mark.daily("torch", "tensorflow")
def test_a_keras_file_in_the_other_formats(run, tmp_path):
    written = everstep.export.export_model(run / "export" / "model.keras", tmp_path)
    assert [path.name for path in written] == ["model.keras", serving_format()[0]]


def test_errors_name_the_arguments(run, tmp_path):
    for arguments, options, key in [
        ((tmp_path / "nowhere", tmp_path / "out"), {}, "model_or_run"),
        ((7, tmp_path / "out"), {}, "model_or_run"),
        ((small_model(), tmp_path / "out"), {"checkpoint": 3}, "checkpoint"),
        ((run / "export" / "model.keras", tmp_path / "out"), {"checkpoint": "last"}, "checkpoint"),
    ]:
        with pytest.raises(UsageError) as error:
            everstep.export.export_model(*arguments, **options)
        assert error.value.key == key
    assert not (tmp_path / "out").exists()


def test_a_model_that_no_format_takes(tmp_path):
    model = keras.Model()
    with pytest.raises(TrainingError) as error:
        everstep.export.export_model(model, tmp_path / "out", X)
    assert error.value.key == "model_or_run"
    assert not (tmp_path / "out").exists()


def test_public_names_of_the_package():
    public = [
        "CheckpointExports",
        "ExportModule",
        "export",
        "export_keras",
        "export_model",
        "export_saved_model",
        "export_torch_program",
        "load_checkpoint",
    ]
    assert set(public) <= set(everstep.export.__all__)  # it also lists what other packages use
    assert all(callable(getattr(everstep.export, name)) for name in public)
    with pytest.raises(AttributeError, match="exprot"):
        everstep.export.exprot  # noqa: B018
