"""The small rules of `Training`: input sizes, paths of jobs, optimizers under a strategy, exit codes, tables."""

import contextlib

import keras
import pytest

from everstep.errors import TrainingError, UsageError
from everstep.projects.training.artifacts import missing, publish
from everstep.projects.training.building import input_size, make_optimizer
from everstep.projects.training.pipeline_job import kubeflow_metrics
from everstep.run.signals import Interrupted
from everstep.testing.problems import raises_problem
from everstep.tracking.history import epoch_table
from everstep.training import job_paths, run_component


def model(**shapes):
    inputs = [keras.Input(shape, name=name) for name, shape in shapes.items()]
    flat = [keras.layers.Flatten()(keras.layers.GlobalMaxPooling2D()(i) if len(i.shape) == 4 else i) for i in inputs]
    return keras.Model(inputs, keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0])


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ({"image": (112, 112, 3)}, 112),
        ({"image": (96, 128, 3)}, (96, 128)),
        ({"image": (112, 112, 3), "label": (1,)}, 112),  # a margin head takes the label along
        ({"left": (32, 32, 3), "right": (32, 32, 1)}, 32),
        ({"x": (7,)}, 7),
    ],
)
def test_input_size(shapes, size):
    assert input_size(model(**shapes)) == size


def test_input_sizes_that_differ():
    both = model(left=(32, 32, 3), right=(16, 24, 3))
    with raises_problem(reason=r"no size in common: left \(None, 32, 32, 3\), right"):
        input_size(both)
    assert input_size(both, "right") == (16, 24)
    with raises_problem(key="name", received="middle", reason="the model has no such input"):
        input_size(both, "middle")
    with raises_problem(reason="inputs of any size"):
        input_size(model(image=(None, None, 3)))


def test_job_paths():
    assert job_paths("gs://bucket/", "faces", "17") == (
        "gs://bucket/tmp/faces/17",
        "gs://bucket/artifacts/faces/17",
    )
    assert job_paths("/data", "faces", "17", "train").artifacts_dir == "/data/artifacts/faces/17/train"
    for bad, key, received in (
        (("", "a", "b"), "root", ""),
        (("/r", "", "b"), "pipeline", ""),
        (("/r", "a/b", "c"), "pipeline", "a/b"),
        (("/r", "a", ".."), "job", ".."),
    ):
        with raises_problem(key=key, received=received, reason="expected"):
            job_paths(*bad)


def test_optimizer_under_a_strategy():
    """Of the same class, with the same settings: never another one."""
    given = keras.optimizers.SGD(0.25, momentum=0.5, nesterov=True)
    again = make_optimizer(given, contextlib.nullcontext())
    assert type(again) is type(given)
    assert again.get_config() == given.get_config()
    assert make_optimizer(given, None) is given


def raising(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UsageError("epochs: received 0"), 2, "everstep: error: epochs: received 0\n"),
        (UsageError("two\nlines"), 2, "everstep: error: two lines\n"),
        (TrainingError("the loss"), 1, "everstep: error: the loss\n"),
        (Interrupted("SIGTERM", 143), 143, "everstep: SIGTERM: nothing is saved yet; the same command starts anew\n"),
        (KeyboardInterrupt("SIGINT: saved"), 130, "everstep: SIGINT: saved\n"),
    ],
)
def test_exit_codes(error, code, printed, capsys):
    assert run_component(raising(error)) == code
    assert capsys.readouterr().err == printed


def test_a_bug_is_not_hidden():
    with pytest.raises(KeyError):
        run_component(raising(KeyError("bug")))
    assert run_component(lambda: None) == 0


def test_history_reads_back_as_a_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    history = {"loss": [0.1, 0.30000000000000004], "late": [1.0]}
    (tmp_path / "history.csv").write_text(epoch_table([0, 1], history))
    frame = pandas.read_csv(tmp_path / "history.csv", index_col=0)
    assert frame.index[-1] + 1 == 2
    assert frame["loss"].tolist() == pytest.approx(history["loss"])
    assert frame["late"].isna().tolist() == [False, True]


def test_metrics_leave_out_what_is_no_number():
    found = kubeflow_metrics({"loss": [1.0, float("nan")], "accuracy": [0.5], "head_acc": [2.0], "none": []})
    assert [(m["name"], m["format"]) for m in found["metrics"]] == [("accuracy", "PERCENTAGE"), ("head_acc", "RAW")]


def test_publish_replaces_its_own_files_and_keeps_what_others_added(tmp_path):
    source, target = tmp_path / "new", tmp_path / "place" / "saved_model"
    for folder, shard in ((source, "new"), (target, "old")):
        (folder / "variables").mkdir(parents=True)
        (folder / "variables" / shard).write_text(shard)
        (folder / "saved_model.pb").write_text(shard)
    (target / "assets.extra").mkdir()
    (target / "assets.extra" / "warmup").write_text("a user's")
    (tmp_path / "place" / ".everstep-123-saved_model").mkdir()  # what a killed one left
    written = publish(source, str(target))
    assert written == ["saved_model/saved_model.pb", "saved_model/variables/new"]
    assert (target / "saved_model.pb").read_text() == "new"
    assert [path.name for path in (target / "variables").iterdir()] == ["new"]
    assert (target / "assets.extra" / "warmup").read_text() == "a user's"
    assert [path.name for path in target.parent.iterdir()] == ["saved_model"]
    assert missing(str(target.parent), [*written, "saved_model/lost"]) == ["saved_model/lost"]


def test_publish_into_a_store_keeps_what_others_added(tmp_path):
    source, target = tmp_path / "new", tmp_path / "store" / "saved_model"
    for folder, shard in ((source, "new"), (target, "old"), (target / "assets.extra", "warmup")):
        (folder / "variables").mkdir(parents=True)
        (folder / "variables" / shard).write_text(shard)
    written = publish(source, f"file://{target}")
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert found == ["assets.extra/variables/warmup", "variables/new"]
    assert missing(f"file://{target.parent}", [*written, "saved_model/lost"]) == ["saved_model/lost"]
