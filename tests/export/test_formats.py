"""Formats of other packages; and the contract of formats, for those that ship."""

import keras
import numpy as np
import pytest

from everstep.errors import TrainingError, UsageError
from everstep.export import ExportFormat, chosen_formats, export_model, formats, register_format
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program
from everstep.testing import exports

pytestmark = [pytest.mark.slow, pytest.mark.backend]


@pytest.fixture
def registered(monkeypatch):
    """Forgets what a test has registered."""
    monkeypatch.setattr(formats, "_formats", {})
    return formats._formats


def write_weights(model, path):
    np.savez(path, *model.get_weights())


def load_dense(path):
    with np.load(path) as weights:
        kernel, bias = weights["arr_0"], weights["arr_1"]
    return lambda batch: batch @ kernel + bias


@pytest.fixture
def dense():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def test_it_is_written_where_it_is_asked_for(registered, dense, tmp_path):
    register_format(ExportFormat("dense", "model.npz", write_weights, load_dense))
    assert [path.name for path in export_model(dense, tmp_path / "one", formats="dense")] == ["model.npz"]
    assert "model.npz" not in [path.name for path in export_model(dense, tmp_path / "all")]
    batch = np.ones((3, 4), "float32")
    found = load_dense(tmp_path / "one" / "model.npz")(batch)
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(dense(batch)), rtol=1e-5)


def test_what_loads_with_other_outputs_is_not_written(registered, dense, tmp_path):
    wrong = ExportFormat("wrong", "wrong.npz", write_weights, lambda path: lambda batch: load_dense(path)(batch) + 1)
    with pytest.raises(TrainingError) as error:
        wrong.export(dense, tmp_path / "export" / "wrong.npz", np.ones((3, 4), "float32"))
    assert error.value.key == "export"
    assert list((tmp_path / "export").iterdir()) == []


def test_what_cannot_be_written_is_refused_before(registered, dense, tmp_path):
    register_format(ExportFormat("no", "no.npz", write_weights, load_dense, lambda model: "is never written"))
    with pytest.raises(UsageError) as error:
        export_model(dense, tmp_path / "export", formats=["keras", "no"])
    assert (error.value.received, error.value.problems[0].reason) == ("no", "is never written")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(("name", "file"), [("keras", "mine.npz"), ("mine", "model.keras")])
def test_names_and_files_of_formats_that_ship_are_taken(registered, name, file):
    with pytest.raises(UsageError) as error:
        register_format(ExportFormat(name, file, write_weights, load_dense))
    assert (error.value.key, error.value.received) == ("register_format", name)
    assert registered == {}


def test_a_misspelt_name_has_a_nearest_one(registered, dense, tmp_path):
    register_format(ExportFormat("dense", "model.npz", write_weights, load_dense))
    with pytest.raises(UsageError) as error:
        export_model(dense, tmp_path, formats="dence")
    assert "dense" in error.value.problems[0].remedy


def load_serving(path):
    if keras.backend.backend() == "torch":
        torch = pytest.importorskip("torch")
        program = torch.export.load(path).module()
        return lambda batch: program(torch.from_numpy(batch)).detach()
    tf = pytest.importorskip("tensorflow")
    program = tf.saved_model.load(str(path))  # it owns the variables: the function alone does not keep them
    return lambda batch: program.serve(batch)


@pytest.mark.parametrize("check", exports.CHECKS, ids=lambda check: check.__name__)
def test_keras_file(check, tmp_path):
    load = lambda path: lambda batch: keras.saving.load_model(path)(batch, training=False)  # noqa: E731
    check(export_keras, load, tmp_path / "export" / "model.keras")


@pytest.mark.daily("torch")
@pytest.mark.parametrize("check", exports.CHECKS, ids=lambda check: check.__name__)
def test_serving_format(check, tmp_path):
    if keras.backend.backend() == "torch":
        check(export_torch_program, load_serving, tmp_path / "export" / "model.pt2")
    else:
        check(export_saved_model, load_serving, tmp_path / "export" / "saved_model")


@pytest.mark.parametrize(("name", "hint"), [("onnx", "format='onnx'"), ("kears", "did you mean 'keras'?")])
def test_a_format_that_is_not_written_here_says_who_writes_it(name, hint):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(UsageError) as caught:
        chosen_formats([name], model, "--format")
    assert hint in caught.value.remedy
