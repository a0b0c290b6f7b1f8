"""`everstep eval RUN --data`: a run of `everstep.fit` on data in files."""

import json

import keras
import numpy as np
import pytest

import everstep
from everstep.cli.eval_data import DataRequest, evaluate_on_data
from everstep.cli.main import main
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int32")
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    settings = {"validation_data": (x[:32], y[:32]), "epochs": 2, "verbose": 0, "export": "keras"}
    everstep.fit(model, x, y, model_dir=folder / "mine", **settings)
    np.savez(folder / "test.npz", x=x[:32], y=y[:32])
    named = enumerate(zip(x.tolist(), y, strict=True))
    rows = [",".join([f"s{n}", *map(repr, row), "right" if label else "left"]) for n, (row, label) in named]
    (folder / "test.csv").write_text("\n".join(["id,a,b,c,d,side", *rows[:32]]) + "\n")
    return folder


@pytest.fixture
def evaluate(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)

    def run(*words):
        code = main(["eval", "mine", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words and out else out, err

    return run


def test_the_numbers_are_those_of_the_last_evaluation(evaluate, trained):
    code, logs, error = evaluate("--data", "test.npz", "--json", "--batch-size", "32")
    assert code == 0, error
    recorded = json.loads((trained / "mine" / "run.json").read_text())["metrics"]["validation"]
    assert logs == {name: recorded[name] for name in ("validation_loss", "accuracy")}


def test_batches_of_any_size_and_an_earlier_checkpoint(evaluate):
    _, whole, _ = evaluate("--data", "test.npz", "--json")
    _, small, _ = evaluate("--data", "test.npz", "--json", "--batch-size", "5")
    assert small == pytest.approx(whole, rel=1e-5)
    code, earlier, error = evaluate("--data", "test.npz", "--json", "--checkpoint", "3")
    assert (code, error.splitlines()[-1]) == (0, "evaluating step 3")
    assert earlier["validation_loss"] != pytest.approx(whole["validation_loss"], rel=1e-5)


def test_it_says_which_weights_are_evaluated(evaluate, trained):
    logged = {"last": [], "best": [], None: []}
    for wanted in logged:
        _, logs, error = evaluate("--data", "test.npz", "--json", *(["--checkpoint", wanted] if wanted else []))
        logged[wanted] = [error.splitlines()[-1], logs]
    assert logged["last"][0] == "evaluating step 6"
    assert logged[None][0] == "evaluating the exported weights, of step 6"
    assert logged["best"][0].startswith("evaluating step 6: the lowest validation loss, ")
    assert logged["best"][1] == logged["last"][1] == logged[None][1]


def test_samples_are_in_the_report(evaluate, trained):
    code, _, error = evaluate("--data", "test.csv", "--label", "side", "--samples", "10")
    assert code == 0, error
    assert "in this order: left 0, right 1" in error
    page = json.loads((trained / "mine" / "reports" / "test.json").read_text())
    assert (page["split"], page["rows"], page["kind"]) == ("test", 10, "classification")
    assert page["samples"][0]["id"] == f"s{page['samples'][0]['row']}"
    assert "test" in (trained / "mine" / "reports" / "report.html").read_text()


def test_without_data_it_says_what_to_pass(evaluate):
    code, _, error = evaluate()
    assert code == 2
    assert "was trained by a program of yours, and its data cannot be read from its record" in error
    assert "everstep eval mine --data PATH (.npz, .csv, .parquet or .tfrecord with labels" in error
    code, _, error = evaluate("--data", "gone.npz")
    assert (code, "--data: received 'gone.npz', does not exist" in error) == (2, True)


def test_a_run_without_a_keras_model_is_told_what_evaluates_it(evaluate, trained):
    """Of a Training: `everstep export`, which was named before, cannot build its model, either."""
    record = json.loads((trained / "mine" / "run.json").read_text())
    (trained / "job").mkdir()
    (trained / "job" / "run.json").write_text(json.dumps({**record, "export": None}))
    (trained / "job" / "config.yaml").write_text("experiment: Training\n")
    with raises_problem(key="TARGET", received="job", remedy=r"load_checkpoint\(model, run\), and call model.evaluate"):
        evaluate_on_data("job", DataRequest("test.npz", None, 32, False, None), None, None, None)
