"""`everstep.fit(report=…)`: the samples, the report and the last lines of a run."""

import csv
import json
import re

import keras
import numpy as np
import pytest
from keras import callbacks, layers
from tracked_program import TEST, X, Y, train

import everstep as es
from everstep.frontends import final_samples
from everstep.frontends.fit import final_report
from everstep.run.closing import best_value
from everstep.run.record import read

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]


def lines_of(capsys):
    """Returns the lines at the end of what was printed, by their labels."""
    text = capsys.readouterr().err
    found = re.findall(r"^(best|exported|report|load it) +(.*)$", text, re.MULTILINE)
    assert text.endswith(f"{found[-1][1]}\n")
    return dict(found)


def samples_of(directory):
    with open(directory / "reports" / "validation.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_model_that_ships_is_evaluated(tmp_path, capsys):
    """Averaged weights, and the state of everything that draws, are as the export has them."""
    model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.2), layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), "sparse_categorical_crossentropy")
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    es.fit(model, X, Y, epochs=3, validation_data=TEST, verbose=2, model_dir=tmp_path / "run")
    assert np.random.get_state()[1].tolist() == before
    losses = [float(row["cross_entropy"]) for row in samples_of(tmp_path / "run")]
    labels = np.asarray(model.predict(TEST[0], verbose=0))[np.arange(16), TEST[1]]
    assert losses == pytest.approx((-np.log(labels)).tolist(), rel=1e-4)  # `finalize_variable_values` left the averages
    run = str(tmp_path / "run")
    found = lines_of(capsys)
    assert found["report"] == f"{run}/reports/report.html"
    assert found["load it"] == f"everstep.load({json.dumps(run)})"
    assert re.fullmatch(r"val_loss \d\.\d+ at epoch \d.*", found["best"])


def test_the_bits_are_those_without_a_report(tmp_path):
    weights = []
    for report in (True, False):
        directory = tmp_path / str(report)
        train(directory, epochs=1, report=report)
        train(directory, epochs=2, report=report)
        weights.append(read(directory)["digest"])
    assert weights[0] == weights[1]
    assert read(tmp_path / "True")["samples"]["step"] == 10
    assert not (tmp_path / "False" / "reports").exists()


def test_a_finished_run_is_not_evaluated_again(tmp_path, monkeypatch):
    train(tmp_path / "run", epochs=1)
    monkeypatch.setattr(final_samples, "evaluate_samples", None)
    (tmp_path / "run" / "reports" / "report.html").unlink()
    train(tmp_path / "run", epochs=1)
    assert (tmp_path / "run" / "reports" / "report.html").exists()


def one_pass():
    for begin in range(0, 40, 8):
        yield X[begin : begin + 8], Y[begin : begin + 8]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"validation_data": one_pass(), "epochs": 1}, "the validation data can be read only once"),
        ({"report": None}, r"that would take about 3 s; fit\(…, report=True\) adds them, also to this run"),
    ],
)
def test_samples_that_are_left_out_are_a_line(tmp_path, capsys, monkeypatch, arguments, reason):
    monkeypatch.setattr(final_report.FinalReport, "_estimated_seconds", lambda self, run: 3.0)
    monkeypatch.setattr(final_report, "MOST_SECONDS", 2.0)
    train(tmp_path / "run", verbose=2, **arguments)
    assert re.fullmatch(rf".*/report\.html, without samples: {reason}", lines_of(capsys)["report"])
    assert not (tmp_path / "run" / "reports" / "validation.json").exists()


def test_asked_for_it_is_evaluated_however_long_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(final_report, "MOST_SECONDS", 0.0)
    train(tmp_path / "run", validation_data=one_pass, validation_steps=2, report=True)
    assert len(samples_of(tmp_path / "run")) == 16


def test_a_model_that_fails_does_not_fail_its_run(tmp_path, capsys, monkeypatch):
    def fails(*arguments, **others):
        raise RuntimeError("no\nway")

    monkeypatch.setattr(final_samples, "evaluate_samples", fails)
    train(tmp_path / "run", verbose=2)
    assert lines_of(capsys)["report"].endswith("without samples: RuntimeError: no")
    assert read(tmp_path / "run")["status"] == "finished"


def test_without_validation_data_there_is_a_report_only_if_it_is_asked_for(tmp_path):
    for report in (None, True):
        train(tmp_path / str(report), validation_data=None, report=report, epochs=1)
    assert [path.name for path in tmp_path.glob("*/reports/*")] == ["report.html"]
    assert (tmp_path / "True" / "reports").is_dir()


def test_nothing_is_printed_without_verbose(tmp_path, capsys):
    train(tmp_path / "run", epochs=1)
    assert capsys.readouterr().err == ""


def test_the_best_value_is_of_what_a_callback_watches(tmp_path, capsys):
    watch = callbacks.EarlyStopping(monitor="val_accuracy", mode="max", patience=9)
    train(tmp_path / "run", watch, verbose=2)
    assert re.match(r"val_accuracy \S+ at epoch [123]", lines_of(capsys)["best"])


def test_the_best_epoch_is_one_that_was_evaluated(tmp_path, capsys):
    train(tmp_path / "run", verbose=2, validation_freq=2, epochs=4)
    assert re.match(r"val_loss \S+ at epoch [24]", lines_of(capsys)["best"])


def test_best_values():
    points = [("epoch 1", 0.5), ("epoch 2", 0.25), ("epoch 3", float("nan")), ("epoch 4", 0.375)]
    assert best_value("val_loss", points) == "val_loss 0.25 at epoch 2; 0.375 at epoch 4, the last"
    assert best_value("val_accuracy", points[:2]) == "val_accuracy 0.5 at epoch 1; 0.25 at epoch 2, the last"
    assert best_value("val_score", points[:2], "higher").startswith("val_score 0.5 at epoch 1")
    assert best_value("val_loss", points[:2]) == "val_loss 0.25 at epoch 2"
    assert best_value("val_loss", points[2:3]) == ""
