"""`everstep runs compare`."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstep.evaluation import Accuracy, Evaluator, SampleBatch
from everstep.extras import install_command
from everstep.report import side_by_side
from everstep.run.record import Run

CONFIG = "task: {units: %d}\ntrainer: {train_steps: 300, mode: '%s'}\nruntime: {token: '%s'}\n"
HISTORY = """step,training_loss,accuracy,learning_rate,validation_loss,validation_accuracy,best_accuracy
100,0.9,0.5,0.1,%s,0.6,0.6
200,0.7,0.6,0.1,%s,%s,0.8
300,0.5,nan,0.1,%s,0.7,0.8
400,0.3,0.7,0."""


def finished_run(name: str, losses: tuple[str, str, str], accuracy: str, units: int = 16, **record: Any) -> Path:
    run = Run.open(f"runs/{name}", "mnist/mlp", "jax")
    run.begin(0, CONFIG % (units, "plain", "hunter2-secret"), code={"commit": "c1", "dirty": False})
    run.update(
        300,
        1,
        {"train": {"training_loss": 0.5, "accuracy": 0.6}, "validation": {"validation_loss": 0.4, "accuracy": 0.7}},
    )
    run.record |= record
    run.finish("finished", "done")
    first, second, third = losses
    (run.directory / "history.csv").write_text(HISTORY % (first, second, accuracy, third))
    return run.directory


@pytest.fixture
def two_runs(everstep: Any) -> Any:
    data = {"train": {"0": {"shape": [4], "sha256": "d1"}}}
    finished_run("a", ("0.8", "0.3", "0.4"), "0.8", data=data, cost={"samples_per_second": 100.0, "device": "cpu"})
    environment = {"python": "3.11", "packages": {"keras": "3.99"}}
    other = {"environment": environment, "code": {"commit": "c2", "dirty": True}, "cost": {"samples_per_second": 50.0}}
    finished_run("b", ("0.9", "nan", "0.2"), "0.8", 32, data={"train": {"0": {"shape": [4], "sha256": "d2"}}}, **other)
    return everstep


def table(text: str) -> dict[str, list[str]]:
    """Every line by its first cell: cells are two blanks or more apart."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]
    return {row[0]: row[1:] for row in rows}


def test_side_by_side(two_runs: Any) -> None:
    outcome = two_runs("runs", "compare", "runs/a", "runs/b")
    rows = table(outcome.out)
    assert outcome.code == 0
    assert rows["a"] == ["b"]
    assert rows["status"] == ["finished", "finished"]
    assert rows["task.units"] == ["16", "32"]
    assert "trainer.train_steps" not in rows, "it is the same in both"
    assert "code" not in rows, "they have imported the same files"
    assert rows["environment"][1] == "python 3.11, keras 3.99"
    assert rows["data.train.0.sha256"] == ["d1", "d2"]
    assert "data.train.0.shape" not in rows
    assert rows["validation loss, last"] == ["0.4 @300", "0.2 @300 *"]
    assert rows["validation loss, best"] == ["0.3 @200", "0.2 @300 *"]
    assert rows["validation accuracy, best"] == ["0.8 @200", "0.8 @200"], "equal values: neither is better"
    assert rows["train accuracy, last"] == ["nan @300", "nan @300"]
    assert rows["train loss, last"] == ["0.5 @300", "0.5 @300"], "a torn line does not count"
    assert not [key for key in rows if "learning_rate" in key or "best_accuracy" in key]
    assert rows["samples_per_second"] == ["100 *", "50"]
    assert "goodput" not in rows, "it is the same in both"
    titles = [line for line in outcome.out.splitlines() if line.isupper()]
    assert (titles[0], titles[-1]) == ("CONFIGURATION", "CODE, MACHINE AND DATA")
    assert "hunter2-secret" not in outcome.out


def test_only_imported_files_are_other_code_and_commands_are_compared(two_runs: Any) -> None:
    def compared(name: str, digest: str, lr: str) -> dict[str, list[str]]:
        for run, content in (("a", "1"), ("b", digest)):
            path = Path(f"runs/{run}/run.json")
            record = json.loads(path.read_text())
            record["code"]["files"] = {"train.py": "0", name: content}
            record["program"] = {"script": "train.py", "arguments": ["--lr", lr if run == "b" else "0.1", "***"]}
            path.write_text(json.dumps(record))
        return table(two_runs("runs", "compare", "runs/a", "runs/b").out)

    rows = compared("model.py", "2", "0.2")
    assert rows["code (model.py)"] == ["c1", "c2 with changes"]
    assert rows["command"] == ["python train.py --lr 0.1 ***", "python train.py --lr 0.2 ***"]
    rows = compared("model.py", "1", "0.1")
    assert not [key for key in rows if key.startswith(("code", "command"))]
    assert table(two_runs("runs", "show", "runs/a").out)["command"] == ["python train.py --lr 0.1 ***"]


def test_the_picture(two_runs: Any, tmp_path: Path) -> None:
    last = two_runs("runs", "compare", "runs/a", "runs/b").out.splitlines()[-1]
    assert last == "runs/a/reports/compare.png"
    data = Path(last).read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG")
    assert width > height > 300
    for name, start in (("x/curves.svg", b"<?xml"), ("curves.pdf", b"%PDF"), ("again.png", data)):
        assert two_runs("runs", "compare", "runs/a", "runs/b", "--out", name).code == 0
        assert Path(name).read_bytes().startswith(start), "the same runs, the same bytes"


def test_json(two_runs: Any) -> None:
    found = json.loads(two_runs("runs", "compare", "runs/a", "runs/b", "--json").out)
    assert [run["directory"] for run in found["runs"]] == ["runs/a", "runs/b"]
    assert {"key": "task.units", "values": ["16", "32"]} in found["configuration"]
    (row,) = [row for row in found["metrics"] if row["key"] == "validation loss, best"]
    assert row == {
        "key": "validation loss, best",
        "values": [0.3, 0.2],
        "steps": [200, 300],
        "better": "lower",
        "best": [1],
    }
    assert "picture" not in found
    assert not Path("runs/a/reports").exists(), "who asks for JSON gets a picture only by name"
    assert (
        json.loads(two_runs("runs", "compare", "runs/a", "runs/b", "--json", "--out", "c.png").out)["picture"]
        == "c.png"
    )


def test_evaluations_and_the_page(two_runs: Any) -> None:
    for name, right in (("a", 1), ("b", 2)):
        labels = [0, 1, 1, 0]
        answers = [[1.0, 0.0] if (label == 0) == (row < right) else [0.0, 1.0] for row, label in enumerate(labels)]

        batch = SampleBatch(None, np.array(labels), np.array(answers))
        Evaluator([Accuracy()]).run([batch], f"runs/{name}/reports", "test")
    outcome = two_runs("runs", "compare", "runs/a", "runs/b", "--html")
    assert table(outcome.out)["test accuracy"] == ["0.25", "0.5 *"]
    assert outcome.out.splitlines()[-1] == "runs/a/reports/comparison.html"
    assert "<html" in Path("runs/a/reports/comparison.html").read_text()


def test_three_runs_of_one_name_and_one_without_a_history(two_runs: Any) -> None:
    run = Run.open("other/a", "mnist/mlp", "jax")
    run.begin(0, "", code={})
    run.update(7, 1, {"validation": {"validation_loss": 0.9}})
    outcome = two_runs("runs", "compare", "runs/a", "runs/b", "other/a")
    rows = table(outcome.out)
    assert rows["runs/a"] == ["runs/b", "other/a"]
    assert rows["status"][2] == "killed"
    assert rows["validation loss, last"][2] == "0.9 @7", "what the record says"
    assert rows["task.units"] == ["16", "32", "-"]
    nothing = two_runs("runs", "compare", "other/a", "runs/b", "--out", "c.png")
    assert nothing.code == 0, "one of them has curves"


def test_nothing_to_draw(everstep: Any) -> None:
    for name in "ab":
        Run.open(f"runs/{name}", "mnist/mlp", "jax").begin(0, "", code={})
    outcome = everstep("runs", "compare", "runs/a", "runs/b")
    assert outcome.code == 0
    assert outcome.err.startswith("no picture: none of the runs has a history")
    assert "no value differs" in outcome.out
    assert everstep("runs", "compare", "runs/a", "runs/b", "--out", "c.png").code == 2
    assert not Path("c.png").exists()


def test_without_matplotlib(two_runs: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(side_by_side.importlib.util, "find_spec", lambda name: None)
    outcome = two_runs("runs", "compare", "runs/a", "runs/b")
    assert outcome.code == 0
    assert outcome.err == (
        "no picture: a picture of curves needs the package 'matplotlib', which is not installed: "
        f"{install_command('plot')}\n"
    )
    assert "validation loss, last" in outcome.out
    refused = two_runs("runs", "compare", "runs/a", "runs/b", "--out", "c.png")
    assert (refused.code, refused.out) == (2, "")
    assert install_command("plot") in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/a"], "received 1, a comparison needs two runs or more"),
        (["runs/a", "runs/../runs/a/"], "is named twice"),
        (["runs/a", "nowhere"], "'nowhere' is not a run directory"),
        (["runs/a", "runs"], "'runs' is not a run directory"),
        (["runs/a", "damaged"], "damaged/run.json: is not valid JSON"),
        (["runs/a", "odd"], "received 'odd/run.json', is damaged: step is missing"),
        (["runs/a", "runs/b", "--out", "c.gif"], "--out: received 'c.gif', expected a file that ends in .png, .svg"),
        (["runs/a", "runs/b", "--out", "dir.png"], "--out: received 'dir.png', is a directory"),
        (["runs/a", "runs/b", "--out", ""], "--out: received ''"),
        ([], "Missing argument"),
    ],
)
def test_bad_requests(two_runs: Any, words: list[str], message: str) -> None:
    for name, text in (("damaged", "{"), ("odd", '{"id": "x", "step": "many"}')):
        Path(name).mkdir()
        Path(name, "run.json").write_text(text)
    Path("dir.png").mkdir()
    outcome = two_runs("runs", "compare", *words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err
    assert not Path("runs/a/reports").exists()


LAYERS = "task: {model: {layers: {dense: 'Dense(activation=relu, units=%d, use_bias=True) <- flatten'}}}\n"


def early_stopped(name: str, units: int, epoch: int) -> Path:
    directory = finished_run(name, ("0.8", "0.3", "0.4"), "0.8")
    final = {"step": 100 * epoch, "epoch": epoch, "exported": True, "metrics": {"validation": {"validation_loss": 0.1}}}
    stop = {"step": 300, "epoch": 3, "reason": "EarlyStopping, val_loss has not improved for 1 epochs"}
    record = json.loads((directory / "run.json").read_text())
    record |= {"epochs": 25, "steps_per_epoch": 100, "final_weights": final, "stopped_early": stop, "train_steps": 2500}
    (directory / "run.json").write_text(json.dumps(record))
    (directory / "config.yaml").write_text(LAYERS % units)
    return directory


def test_the_numbers_of_the_exported_weights(everstep: Any) -> None:
    """They come first, at their epoch, with the last ones beside them; of a layer, what differs."""
    early_stopped("a", 16, 2), early_stopped("b", 32, 1)
    rows = table(everstep("runs", "compare", "runs/a", "runs/b").out)
    assert rows["validation loss, exported"] == ["0.3 @epoch 2 *", "0.8 @epoch 1"]
    assert rows["validation loss, last"] == ["0.4 @epoch 3", "0.4 @epoch 3"]
    assert rows["layers.dense units"] == ["16", "32"]
    listed = everstep("runs", "list", "--sort", "val_loss").out
    assert "stopped early at epoch 3 of 25" in listed
    assert "0.1 (epoch 2)" in listed
    everstep("runs", "list").out.index("validation_loss=0.1 (epoch 2, exported; last 0.4)")
    shown = everstep("runs", "show", "runs/a").out
    assert "stopped by" in shown
    assert "0.1 (epoch 2, exported), last 0.4" in shown
    watched = everstep("runs", "watch", "runs/a").out
    assert "runs/a · finished · stopped early at epoch 3 of 25 · " in watched
