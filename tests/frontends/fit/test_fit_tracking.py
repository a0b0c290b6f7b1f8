"""`everstep.fit` with `tracking`, `name`, `tags` and `notes`: what a run says of itself, once, however often killed."""

import collections
import json
import re
import signal
import sys

import keras
import pytest
import tracked_program
import yaml
from keras import layers
from tests.children import forked
from tracked_program import EPOCHS, STEPS, TEST, X, Y, classifier, tracked, train

import everstep as es
from everstep.cli.main import main
from everstep.frontends.fit.labelling import model_name
from everstep.frontends.fit.tracking import tracking_config
from everstep.run.record import read
from everstep.testing.problems import raises_problem
from everstep.testing.servers.mlflow_server import points_of, runs_of
from everstep.tracking.config import TrackingConfig

# MLflow's database code under the newest SQLAlchemy; it is not ours to change.
LATE = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
pytestmark = [pytest.mark.backend, LATE]

ON_TORCH = pytest.mark.daily("torch")


@ON_TORCH
@pytest.mark.usefixtures("no_export")
def test_a_run_that_is_killed_three_times_has_everything_once(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = tmp_path / "runs" / "a"
    for point in ("training", "before the samples", "before the report"):
        command = [sys.executable, tracked_program.__file__, str(tmp_path), point]
        assert forked.run(command, capture_output=True, text=True).returncode == -signal.SIGKILL, point
    assert not (directory / "reports" / "report.html").exists()
    tracked(tmp_path)

    record = read(directory)
    assert [attempt["to_step"] for attempt in record["attempts"]] == [10, 15, 15, 15]
    assert (record["status"], record["name"], record["tags"]) == (
        "finished",
        "baseline",
        {"team": "vision", "small": ""},
    )
    assert record["samples"] == {"split": "validation", "step": EPOCHS * STEPS}
    reports = directory / "reports"
    assert len((reports / "validation.csv").read_text().splitlines()) == 1 + len(TEST[0])
    assert '"baseline"' in (reports / "report.html").read_text()

    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    wanted = [(STEPS * epoch, kind) for epoch in range(1, EPOCHS + 1) for kind in ("train", "validation")]
    assert [(line["step"], line["kind"]) for line in lines] == wanted

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (run,) = runs_of(uri, "baseline")
    assert run.info.status == "FINISHED"
    assert (run.data.tags["team"], run.data.tags["small"]) == ("vision", "true")
    assert run.data.tags["mlflow.note.content"] == "The first with dropout."
    points = points_of(uri, run)
    assert set(points.values()) == {1}
    steps = collections.Counter(step for name, step, _ in points if name == "validation_loss")
    assert steps == {STEPS * epoch: 1 for epoch in range(1, EPOCHS + 1)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tracking") / "run"
    train(directory, export=[], report=False, tags=["first"], notes="One\nline.")
    return directory


def test_a_run_is_called_as_its_model(run):
    record = read(run)
    assert (record["experiment"], record["name"]) == ("Sequential", "Sequential")
    assert "experiment" not in yaml.safe_load((run / "config.yaml").read_text())


def test_the_name_of_a_model_does_not_count_the_models_of_the_process():
    class HTTPNet2(keras.Model):
        pass

    assert [model_name(keras.Sequential()) for _ in range(2)] == ["Sequential"] * 2
    assert [model_name(HTTPNet2()) for _ in range(2)] == ["HTTPNet2"] * 2
    inputs = keras.Input((2,))
    assert model_name(keras.Model(inputs, layers.Dense(1)(inputs))) == "Functional"
    assert model_name(classifier(name="digits")) == "digits"
    assert model_name(classifier(name="sequential_net")) == "sequential_net"


def test_a_resumed_run_keeps_what_is_not_said_and_takes_what_is(tmp_path):
    arguments = {"export": [], "report": False, "epochs": 1}
    train(tmp_path / "run", name="first", tags={"team": "vision"}, notes="a", **arguments)
    train(tmp_path / "run", **arguments)
    kept = {key: read(tmp_path / "run")[key] for key in ("name", "tags", "notes", "experiment")}
    assert kept == {"name": "first", "tags": {"team": "vision"}, "notes": "a", "experiment": "first"}
    train(tmp_path / "run", name="second", tags=[], notes="b", **arguments)
    said = {key: read(tmp_path / "run")[key] for key in ("name", "tags", "notes", "experiment")}
    assert said == {"name": "second", "tags": {}, "notes": "b", "experiment": "first"}


def test_a_run_from_before_there_were_names_stays_where_it_is_tracked(tmp_path):
    arguments = {"export": [], "report": False, "epochs": 1}
    train(tmp_path / "run", **arguments)
    former = {**read(tmp_path / "run"), "experiment": "CompiledTask"}
    for key in ("name", "tags", "notes"):
        del former[key]
    (tmp_path / "run" / "run.json").write_text(json.dumps(former))
    train(tmp_path / "run", **arguments)
    record = read(tmp_path / "run")
    assert (record["experiment"], record["name"]) == ("CompiledTask", "Sequential")


def test_lists_show_what_is_said(run, capsys):
    assert main(["runs", "show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^tags +first\nnotes +One line\.$", shown, re.MULTILINE)
    assert main(["runs", str(run.parent)]) == 0
    assert "Sequential" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tracking", "settings"),
    [
        (None, {}),
        ("jsonl", {"jsonl": True}),
        (["json", "tensorboard", "mlflow"], {"jsonl": True, "mlflow": True}),
        (("wandb",), {"wandb": True}),
        ({"json": True, "samples": 4}, {"jsonl": True, "samples": 4}),
        ({"mlflow": True, "mlflow_uri": "http://here"}, {"mlflow": True, "mlflow_uri": "http://here"}),
        (TrackingConfig(norms=True), {"norms": True}),
    ],
)
def test_what_tracking_takes(tracking, settings):
    assert tracking_config(tracking) == TrackingConfig(**settings)


REFUSED = [
    ("tracking", {"tracking": "mlfow"}),
    ("tracking", {"tracking": 3}),
    ("tracking", {"tracking": ["jsonl", 3]}),
    ("tracking.mlfow", {"tracking": {"mlfow": True}}),
    ("tracking.jsonl", {"tracking": {"jsonl": 3}}),
    ("tracking.mlflow_uri", {"tracking": {"mlflow_uri": "http://here"}}),
    ("name", {"name": ""}),
    ("name", {"name": "two\nlines"}),
    ("tags", {"tags": 3}),
    ("tags", {"tags": [3]}),
    ("tags", {"tags": {"team": ["vision"]}}),
    ("tags", {"tags": ["everstep.run_id"]}),
    ("notes", {"notes": 3}),
    ("report", {"report": "yes"}),
]


@pytest.mark.parametrize(("key", "arguments"), REFUSED)
def test_what_is_refused(key, arguments, tmp_path):
    with raises_problem(key=key):
        train(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [{"tracking": "jsonl"}, {"name": "a"}, {"tags": ["a"]}, {"report": True}])
def test_what_is_said_about_a_run_needs_a_directory(arguments):
    with raises_problem(key=next(iter(arguments))):
        es.fit(classifier(), X, Y, **arguments)
