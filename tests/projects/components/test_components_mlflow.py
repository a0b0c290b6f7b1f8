"""A project's run on a real MLflow server: one run over all attempts, everything once, under the names users know."""

import subprocess

import pytest
from components_project import EVALUATION, write_run, write_source

from everstep.components import Orchestrator
from everstep.testing.servers.mlflow_server import MlflowServer, memory_folder, points_of, runs_of
from everstep.testing.servers.proxy import Proxy
from everstep.tracking.syncing import sync

# MLflow's database code under the newest SQLAlchemy, and Keras under the newest NumPy; neither is ours to change.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EPOCH = {"loss", "val_loss", "sparse_categorical_accuracy", "val_sparse_categorical_accuracy"}
OWN = ("_model.evaluate_loss", "_model.evaluate_sparse_categorical_accuracy", "sparse categorical ce")
EVALUATED = {f"{split}_{name}" for split in ("validation", "test") for name in OWN}
DESCRIBED = {"model_details": {"name": "digits"}, "considerations": {"users": "none"}}
ODD = {
    "note": "ratio: 3: 4",
    "sizes": [3, 5, "7: 9"],
    "long": "word " * 140,
    "deep": {"deeper": {"rate": 1e-05, "on": False}},
    "nothing": None,
}


@pytest.fixture(scope="module")
def server():
    with memory_folder() as folder, MlflowServer(folder).running() as running:
        running.wait()
        yield running


def run(root, data, action="run"):
    return getattr(Orchestrator("a", root, data, verbose=False), action)()


def steps(points):
    """Which steps each metric has; a point that is there twice has its step twice."""
    listed = sorted((name, step) for name, step, _ in points.elements())
    return {name: [step for other, step in listed if other == name] for name, _ in listed}


def write_tracked_run(root, monkeypatch, uri, **changes):
    """A project whose experiment is named by its folder, where nothing else of the server's is."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    write_source(root)
    return write_run(root, project_name=root.name, **changes)


def only(uri, root):
    (found,) = runs_of(uri, root.name)
    return found, points_of(uri, found)


def test_what_is_where(tmp_path, data, server, monkeypatch):
    """No git anywhere; then a run again, more epochs, and other functions: each adds what is new, and nothing else."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = write_tracked_run(tmp_path, monkeypatch, server.uri, odd=ODD, **DESCRIBED)
    results = run(tmp_path, data)
    first, points = only(server.uri, tmp_path)
    assert (first.info.run_name, first.info.status) == ("a", "FINISHED")
    assert steps(points) == dict.fromkeys(EPOCH, [0, 1]) | dict.fromkeys(EVALUATED, [0])
    assert first.data.metrics["test_sparse categorical ce"] == results["test"]["eval_funcs"]["sparse categorical ce"]
    assert first.data.metrics["validation__model.evaluate_loss"] == results["validation"]["model.evaluate"]["loss"]

    params = first.data.params
    assert {name: value for name, value in params.items() if name.startswith("config_odd")} == {
        "config_odd.note": "ratio: 3: 4",
        "config_odd.sizes": "[3, 5, '7: 9']",
        "config_odd.long": "word " * 140,
        "config_odd.deep.deeper.rate": "1e-05",
        "config_odd.deep.deeper.on": "False",
    }
    assert params["config_data_dir"] == str(data)
    assert (params["config_export.metric"], params["config_seed"]) == ("val_loss", "101")
    assert (params["project name"], params["run name"]) == (tmp_path.name, "a")
    assert params["code version"].startswith("sources ")
    assert not [name for name in params if name.startswith(("config_model_details", "config_considerations"))]
    assert (first.data.tags["session_type"], first.data.tags["mlflow.runName"]) == ("training", "a")
    assert first.data.tags["everstep.run_id"] == (folder / "run_id.txt").read_text().strip()

    run(tmp_path, data)  # evaluated again
    assert only(server.uri, tmp_path)[1] == points

    write_tracked_run(tmp_path, monkeypatch, server.uri, odd=ODD, epochs=3, **DESCRIBED)
    run(tmp_path, data)
    longer, more = only(server.uri, tmp_path)
    assert (longer.info.run_id, longer.info.status) == (first.info.run_id, "FINISHED")
    assert more >= points
    assert {name: steps(more)[name] for name in EPOCH} == dict.fromkeys(EPOCH, [0, 1, 2])
    assert {name: steps(more)[name] for name in EVALUATED} == dict.fromkeys(EVALUATED, [0, 1])
    assert longer.data.params["config_epochs"] == "2"  # MLflow keeps a parameter for ever
    assert longer.data.tags["everstep.changed.config_epochs"] == "3"

    write_source(tmp_path, evaluation=EVALUATION.replace("return scce(", "return 2 * scce("))
    run(tmp_path, data, "evaluate")
    doubled, last = only(server.uri, tmp_path)
    assert steps(last)["test_sparse categorical ce"] == [0, 1, 2]
    before, after = (found.data.metrics["test_sparse categorical ce"] for found in (longer, doubled))
    assert after == pytest.approx(2 * before)


def test_down_through_all_of_training(tmp_path, data, server, monkeypatch):
    """The server is gone while a run trains, exports and evaluates; back, it gets everything once."""
    with Proxy(server.uri) as proxy:
        proxy.fault = "refuse"
        folder = write_tracked_run(tmp_path, monkeypatch, proxy.uri)
        run(tmp_path, data)
        assert runs_of(server.uri, tmp_path.name) == []
        proxy.fault = "none"
        result = sync(folder)
        assert (result.waiting, result.problem) == (0, None)
        found, points = only(server.uri, tmp_path)
        assert steps(points) == dict.fromkeys(EPOCH, [0, 1]) | dict.fromkeys(EVALUATED, [0])
        assert found.info.status == "FINISHED"
        assert sync(folder).sent == 0


@pytest.mark.full
@pytest.mark.parametrize("fault", ["error", "lose_answers"])
def test_failing_through_all_of_training_and_back_in_the_next_run(tmp_path, data, server, monkeypatch, fault):
    with Proxy(server.uri) as proxy:
        proxy.fault = fault
        write_tracked_run(tmp_path, monkeypatch, proxy.uri)
        run(tmp_path, data)
        proxy.fault = "none"
        run(tmp_path, data)
        found, points = only(server.uri, tmp_path)
        assert steps(points) == dict.fromkeys(EPOCH, [0, 1]) | dict.fromkeys(EVALUATED, [0])
        assert (found.info.status, found.data.params["config_epochs"]) == ("FINISHED", "2")


@pytest.mark.full
def test_the_code_version_is_that_of_the_project(tmp_path, data, server, monkeypatch):
    write_tracked_run(tmp_path, monkeypatch, server.uri)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@here"]
    (tmp_path / ".gitignore").write_text("runs/\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    run(tmp_path, data)
    assert only(server.uri, tmp_path)[0].data.params["code version"] == commit
    (tmp_path / "src" / "more.py").write_text("")
    run(tmp_path, data)
    found, _ = only(server.uri, tmp_path)
    assert found.data.params["code version"] == commit
    assert found.data.tags["everstep.changed.code version"] == found.data.tags["code version"]
    assert found.data.tags["code version"] == f"{commit} with changes"
