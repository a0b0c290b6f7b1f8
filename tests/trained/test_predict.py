"""Predictions of a trained run, from data of many kinds, into tables."""

import csv
import json
from pathlib import Path

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.trained.predict_models import CLASSES, samples, train, write_table

from everstep.errors import TrainingError, UsageError
from everstep.export import export_model
from everstep.testing.problems import raises_problem
from everstep.trained.finding import find, run_of
from everstep.trained.predicting import PredictOptions, predictor_of, write_predictions

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch", "tensorflow")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("predict") / "run"
    logs = train(directory)
    return directory, logs


@pytest.fixture(scope="module")
def predictor(run):
    return predictor_of(find(str(run[0])))


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.daily("torch")
def test_predictions_have_the_accuracy_that_was_logged(run, predictor, tmp_path):
    x, y = samples(60, 1)
    np.savez(tmp_path / "in.npz", x=x, y=y)
    record = find(str(run[0])).record
    assert (
        write_predictions(
            predictor, str(tmp_path / "in.npz"), str(tmp_path / "out.csv"), PredictOptions(batch_size=7), record
        )
        == 60
    )
    found = rows(tmp_path / "out.csv")
    assert list(found[0]) == ["id", "prediction", "probability"]
    assert [row["id"] for row in found] == [str(index) for index in range(60)]
    accuracy = np.mean([int(row["prediction"]) for row in found] == y)
    assert abs(accuracy - run[1]["val_accuracy"]) < 1e-6
    assert all(1 / CLASSES <= float(row["probability"]) <= 1 for row in found)


def test_probabilities_of_every_class(predictor, tmp_path):
    x, _ = samples(5)
    np.save(tmp_path / "in.npy", x)
    write_predictions(
        predictor, str(tmp_path / "in.npy"), str(tmp_path / "out.parquet"), PredictOptions(probabilities=True)
    )
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    every = np.stack([table[f"probability_{index}"] for index in range(CLASSES)], axis=1)
    np.testing.assert_allclose(every, keras.ops.convert_to_numpy(predictor.model(x)), rtol=1e-5)
    assert table["prediction"] == every.argmax(axis=1).tolist()


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_tables_with_ids_and_a_label(predictor, tmp_path, name):
    x, y = samples(5)
    np.save(tmp_path / "x.npy", x)
    write_table(tmp_path / name, x, id=list("abcde"), label=y)
    write_predictions(predictor, str(tmp_path / "x.npy"), str(tmp_path / "expected.csv"))
    options = PredictOptions(batch_size=2, without=("label",))
    write_predictions(predictor, str(tmp_path / name), str(tmp_path / "out.csv"), options)
    found, expected = rows(tmp_path / "out.csv"), rows(tmp_path / "expected.csv")
    assert [row["id"] for row in found] == list("abcde")
    assert [row["prediction"] for row in found] == [row["prediction"] for row in expected]


def test_a_pytorch_program_is_refused(tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"whatever")
    for name in (tmp_path / "model.pt2", tmp_path):
        with raises_problem(key="RUN", reason="may run any code") as error:
            find(str(name))
        assert error.value.received == str(tmp_path / "model.pt2")


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch cannot write a SavedModel")
def test_the_saved_model_predicts_the_same(run, predictor, tmp_path):
    x, _ = samples(9)
    np.save(tmp_path / "in.npy", x)
    (saved_model,) = export_model(run[0], tmp_path, formats="saved_model")
    other = predictor_of(find(str(saved_model)))
    for name, each in (("keras.csv", predictor), ("saved.csv", other)):
        write_predictions(each, str(tmp_path / "in.npy"), str(tmp_path / name))
    first, second = rows(tmp_path / "keras.csv"), rows(tmp_path / "saved.csv")
    assert [row["prediction"] for row in first] == [row["prediction"] for row in second]
    np.testing.assert_allclose(*[[float(row["probability"]) for row in each] for each in (first, second)], rtol=1e-5)


def test_an_earlier_checkpoint(run, predictor):
    x, _ = samples(4)
    steps = sorted(int(path.name) for path in (run[0] / "checkpoints").iterdir())
    early = predictor_of(find(str(run[0])), steps[0])
    last = predictor_of(find(str(run[0])), steps[-1])
    name = next(iter(predictor.predict([x])))
    np.testing.assert_array_equal(last.predict([x])[name], predictor.predict([x])[name])
    assert np.abs(np.asarray(early.predict([x])[name]) - np.asarray(predictor.predict([x])[name])).max() > 0
    with raises_problem(key="--checkpoint", received="1", remedy=f"there are: {steps[0]}"):
        predictor_of(find(str(run[0])), 1)


@pytest.mark.parametrize(
    ("array", "fields"),
    [
        (
            np.zeros((3, 5), "float32"),
            {"reason": r"float32\[5\] per sample, but the model's input 'points' takes float32\[4\]"},
        ),
        (np.zeros((3, 2, 2), "float32"), {"reason": r"float32\[2, 2\] per sample"}),
        (np.array([["a"] * 4]), {"reason": r"str32\[4\] per sample", "remedy": "convert it"}),
        (np.zeros((3, 4), "complex64"), {"reason": "complex64"}),
        (np.zeros((0, 4), "float32"), {"reason": "contains no samples"}),
        (np.float32([[0, 1, 2, np.nan]]), {"reason": "'points' is NaN or infinite"}),
        (np.float64([[0, 1, 2, np.inf]]), {"reason": "'points' is NaN or infinite"}),
    ],
)
def test_data_that_does_not_fit(predictor, tmp_path, array, fields):
    np.save(tmp_path / "in.npy", array)
    with raises_problem(key="--input", **fields) as caught:
        write_predictions(predictor, str(tmp_path / "in.npy"), str(tmp_path / "out.csv"))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_columns_that_do_not_fit(predictor, tmp_path):
    x, y = samples(5)
    write_table(tmp_path / "in.csv", x, label=y)
    with raises_problem(key="--input", reason=r"has 5 columns of values \(label, f0,", remedy="--without NAME"):
        write_predictions(predictor, str(tmp_path / "in.csv"), str(tmp_path / "out.csv"))
    write_table(tmp_path / "text.csv", x[:, :3], word=list("abcde"))
    with raises_problem(key="--input", reason="the column 'word' holds text"):
        write_predictions(predictor, str(tmp_path / "text.csv"), str(tmp_path / "out.csv"))


def test_a_pickled_array_is_not_loaded(predictor, tmp_path):
    np.save(tmp_path / "in.npy", np.array([[1, "a", None, 2]], dtype=object), allow_pickle=True)
    with raises_problem(key="--input", reason="Python objects, which are not loaded"):
        write_predictions(predictor, str(tmp_path / "in.npy"), str(tmp_path / "out.csv"))


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("out.txt", ""),
        ("nowhere/out.csv", "create it first"),
        ("there.csv", "remove it, or name another file"),
        ("/proc/out.csv", "choose a directory you may write to"),
    ],
)
def test_unusable_outputs(predictor, tmp_path, output, remedy):
    np.save(tmp_path / "in.npy", samples(2)[0])
    (tmp_path / "there.csv").write_text("an earlier file\n")
    with pytest.raises(UsageError) as error:
        write_predictions(predictor, str(tmp_path / "in.npy"), str(tmp_path / output))
    assert (error.value.key, error.value.remedy) == ("--output", remedy)
    assert (tmp_path / "there.csv").read_text() == "an earlier file\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_an_error_and_leaves_no_file(predictor, tmp_path, monkeypatch):
    np.save(tmp_path / "in.npy", samples(2)[0])
    monkeypatch.setattr("everstep.storage._temporary_name", lambda path: path.with_name(f"draft-{path.name}"))
    (tmp_path / "draft-out.csv").symlink_to("/dev/full")
    with raises_problem(TrainingError, key="--output", reason="No space left") as error:
        write_predictions(predictor, str(tmp_path / "in.npy"), str(tmp_path / "out.csv"))
    assert (error.value.key, error.value.received) == ("--output", str(tmp_path / "out.csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_a_run_is_found_by_its_own_id_or_by_mlflows(run, monkeypatch):
    monkeypatch.chdir(run[0].parent)
    identity = json.loads((run[0] / "run.json").read_text())["id"]
    assert find(identity).directory.resolve() == run[0].resolve()
    (run[0] / "spool").mkdir(exist_ok=True)
    (run[0] / "spool" / "mlflow.sent.json").write_text(json.dumps({"remote_id": "0" * 32}))
    assert run_of("0" * 32).resolve() == run[0].resolve()
    with pytest.raises(UsageError) as error:
        find("1" * 32)
    assert (error.value.key, error.value.received) == ("RUN", "1" * 32)
