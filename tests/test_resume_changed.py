"""Runs resumed with a changed configuration: what is printed and recorded, and that a refusal changes nothing."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.config import Config, dialect
from everstep.engine.backend import installed
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import Regression
from loop.samples import run, tiny_params

pytestmark = pytest.mark.backend

ROUND = ["tensorflow", "jax", "torch"]
OTHERS = [name for name in (ROUND * 2)[ROUND.index(keras.backend.backend()) :][1:3] if name in installed()]
OTHER = OTHERS[0]
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")


@dataclasses.dataclass
class WideModel(Config):
    units: int = 8


@dataclasses.dataclass
class WideConfig(es.TaskConfig):
    model: Config | None = WideModel()


class WideTask(Regression):
    """The same samples on every backend, and a model with nothing random in it."""

    def build_model(self):
        layers = [keras.layers.Dense(self.units, "tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    def build_inputs(self, params, input_context=None):
        return X, X.sum(axis=1, keepdims=True)


class OtherData(WideTask):
    def __init__(self, count):
        super().__init__(units=8)
        self.inputs = np.ones((count, 4), "float32")

    def build_inputs(self, params, input_context=None):
        return self.inputs, X[:1].sum(axis=1, keepdims=True).repeat(len(self.inputs), axis=0)


def train(model_dir, mode="train", changes=None, task=None, **kwargs):
    """Runs an experiment of 4 steps, with some values changed."""
    params = tiny_params(train_steps=4)
    params.task = WideConfig(train_data=params.task.train_data, validation_data=params.task.validation_data)
    params.override(changes or {})
    task = task or WideTask(units=params.task.model.units)
    return run(mode, model_dir, task, params, verbose=True, **kwargs)


def files(model_dir):
    """Returns the content of every file of a run."""
    return {str(path.relative_to(model_dir)): path.read_bytes() for path in model_dir.rglob("*") if path.is_file()}


def attempts(model_dir):
    return json.loads((model_dir / "run.json").read_text())["attempts"]


def stored(model_dir):
    return dialect.load((model_dir / "config.yaml").read_text())


def listed(error):
    """Returns the changes that a refusal names."""
    return list(map(str, error.value.problems[:-1]))


@pytest.fixture(scope="module")
def started_run(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("started") / "run"
    train(model_dir)
    return model_dir


@pytest.fixture
def model_dir(started_run, tmp_path):
    """A run that has 4 steps."""
    return shutil.copytree(started_run, tmp_path / "run")


def test_accepted_changes_are_printed_and_recorded(model_dir, capsys):
    capsys.readouterr()
    task = {"validation_data": {"global_batch_size": 3}, "init_checkpoint": "gone.keras"}
    trainer = {"train_steps": 8, "validation_interval": 2, "max_to_keep": 2}
    train(model_dir, changes={"task": task, "trainer": trainer})
    lines = capsys.readouterr().err.splitlines()
    printed = [line for line in lines if line.startswith(("resuming with ", "not used: "))]
    assert printed == [
        "not used: task.init_checkpoint: '' -> gone.keras; the run resumes from its own checkpoint of step 4",
        "resuming with task.validation_data.global_batch_size: 4 -> 3",
        "resuming with trainer.train_steps: 4 -> 8",
        "resuming with trainer.max_to_keep: 5 -> 2",
        "resuming with trainer.validation_interval: 8 -> 2",
    ]
    first, second = attempts(model_dir)
    assert first["changes"] == []
    assert {"key": "trainer.train_steps", "old": 4, "new": 8} in second["changes"]
    assert len(second["changes"]) == len(printed)
    assert stored(model_dir)["trainer"]["train_steps"] == 8


def test_the_same_again_changes_nothing(model_dir, capsys):
    train(model_dir)
    assert "resuming with" not in capsys.readouterr().err
    assert [attempt["changes"] for attempt in attempts(model_dir)] == [[], []]


BATCH = {"train_data": {"global_batch_size": 4}}
RATE = {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.5}}}}
RATE_KEY = "trainer.optimizer_config.learning_rate.constant.learning_rate"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"runtime": {"seed": 1}}, ["runtime.seed: 0 -> 1"]),
        ({"task": BATCH, "trainer": {"train_steps": 8}}, ["task.train_data.global_batch_size: 8 -> 4"]),
        ({"trainer": RATE}, [f"{RATE_KEY}: 0.01 -> 0.5"]),
        (
            {"task": {"model": {"units": 9}}, "runtime": {"mixed_precision_dtype": "bfloat16"}},
            ["task.model.units: 8 -> 9", "runtime.mixed_precision_dtype: null -> bfloat16"],
        ),
    ],
)
def test_refused_changes_leave_every_byte(changes, lines, model_dir):
    before = files(model_dir)
    for mode in ("train", "train_and_eval", "train_and_post_eval"):
        with pytest.raises(UsageError) as error:
            train(model_dir, mode, changes)
        assert listed(error) == lines
    assert files(model_dir) == before


def test_allowed_change(model_dir):
    changes = {"trainer": {"train_steps": 8, **RATE}}
    train(model_dir, changes=changes, allow_change=["trainer.optimizer_config"])
    recorded = {change["key"]: change["new"] for change in attempts(model_dir)[1]["changes"]}
    assert recorded == {"trainer.train_steps": 8, RATE_KEY: 0.5}
    assert OrbaxCheckpointer(model_dir / "checkpoints").restore()[0]["optimizer/learning_rate"] == 0.5
    with raises_problem(key=RATE_KEY, reason="0.5 -> 0.01"):  # it resumes from what it used last
        train(model_dir)


def test_shapes_are_the_engines_to_refuse(model_dir):
    before = files(model_dir)
    with raises_problem(reason="does not fit", remedy=r"shape of model/dense/kernel: here \(4, 9\)"):
        train(model_dir, changes={"task": {"model": {"units": 9}}}, allow_change=["task.model.units"])
    assert files(model_dir) == before


def test_unknown_key_to_allow(model_dir, tmp_path):
    before = files(model_dir)
    for directory in (model_dir, tmp_path / "new"):
        with pytest.raises(UsageError) as error:
            train(directory, allow_change=["runtime.bakend"])
        assert (error.value.key, error.value.received) == ("allow_change", "runtime.bakend")
        assert error.value.remedy.startswith("did you mean 'runtime.backend'")
    assert files(model_dir) == before
    assert not (tmp_path / "new").exists()
    train(model_dir, allow_change=["runtime.backend", "task.model"])  # neither has changed


def test_evaluation_asks_nothing_and_writes_only_events(model_dir):
    before = files(model_dir)
    for mode in ("eval", "continuous_eval"):
        assert "mae" in train(model_dir, mode, {"runtime": {"seed": 5}, "task": BATCH})[1]
    after = files(model_dir)
    changed = {name for name, content in after.items() if content != before.get(name)}
    assert {name.partition("/")[0] for name in changed} == {"validation"}
    assert set(before) <= set(after)


def test_run_without_checkpoint_starts_from_scratch(tmp_path):
    """What was never saved cannot be continued, so nothing in it has to stay."""

    def fail(logs):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        train(tmp_path / "run", train_actions=[fail])
    train(tmp_path / "run", changes={"runtime": {"seed": 7}})
    assert attempts(tmp_path / "run")[1]["changes"] == []
    assert stored(tmp_path / "run")["runtime"]["seed"] == 7


def test_the_checkpoint_holds_the_configuration_it_was_trained_with(model_dir):
    """Whatever `config.yaml` contains: that of an attempt that was killed before its first step, or nothing."""
    text = (model_dir / "config.yaml").read_text()
    (model_dir / "config.yaml").write_text(text.replace("seed: 0", "seed: 9"))
    train(model_dir)
    assert (attempts(model_dir)[1]["changes"], stored(model_dir)["runtime"]["seed"]) == ([], 0)
    (model_dir / "config.yaml").unlink()
    with pytest.raises(UsageError) as error:
        train(model_dir, changes={"runtime": {"seed": 9}})
    assert listed(error) == ["runtime.seed: 0 -> 9"]


def test_other_data_is_refused(model_dir, caplog):
    before = files(model_dir)
    for count, difference in (
        (40, r"array 0 was float32\[24, 4\], now it is float32\[40, 4\]"),
        (24, "has other content"),
    ):
        with raises_problem(key="data", reason=difference) as error:
            train(model_dir, task=OtherData(count))
        assert "--allow-change data" in error.value.problems[-1].fill(error.value.problems[-1].remedy)
    assert files(model_dir) == before
    longer = {"trainer": {"train_steps": 8}}
    train(model_dir, changes=longer, task=OtherData(24), allow_change=["data"])
    assert "resuming with other data" in caplog.text
    assert attempts(model_dir)[1]["to_step"] == 8


def test_other_versions_are_a_warning(model_dir, monkeypatch, caplog):
    monkeypatch.setattr("everstep.run.resume_checks.packages", lambda: {"keras": "3.99"})
    train(model_dir, changes={"trainer": {"train_steps": 8}})
    assert f"resuming with other versions, so the bits may differ: keras {keras.__version__} -> 3.99" in caplog.text


# -- another backend ---------------------------------------------------------------------------------------------------


def test_another_backend_is_refused(model_dir, monkeypatch):
    before, newest_meta = files(model_dir), OrbaxCheckpointer.newest_meta

    def of_the_other(checkpointer):
        text = json.dumps(newest_meta(checkpointer))
        return json.loads(text.replace(f"backend: {keras.backend.backend()}", f"backend: {OTHER}"))

    monkeypatch.setattr(OrbaxCheckpointer, "newest_meta", of_the_other)
    with pytest.raises(UsageError) as error:
        train(model_dir)
    assert listed(error) == [f"runtime.backend: {OTHER} -> {keras.backend.backend()}"]
    assert files(model_dir) == before


@pytest.mark.daily("torch")
@pytest.mark.parametrize("other", [OTHER, *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS[1:])])
def test_run_resumes_on_another_backend(tmp_path, other):
    """Another process, on another backend, ends where this one would have ended, up to rounding.

    Each backend hands a run to the next one, and in the full version to both others.
    """
    train(tmp_path / "whole", changes={"trainer": {"train_steps": 16}})
    train(tmp_path / "run", changes={"trainer": {"train_steps": 10}})
    printed = on_another_backend(tmp_path / "run", other)
    assert f"resuming with runtime.backend: {keras.backend.backend()} -> {other}" in printed
    assert json.loads((tmp_path / "run" / "run.json").read_text())["backend"] == other
    assert (attempts(tmp_path / "run")[1]["from_step"], stored(tmp_path / "run")["runtime"]["backend"]) == (10, other)
    wanted, meta = OrbaxCheckpointer(tmp_path / "whole" / "checkpoints").restore()
    found, same = OrbaxCheckpointer(tmp_path / "run" / "checkpoints").restore()
    assert (same["step"], same["stream"]) == (meta["step"], meta["stream"]) == (16, {"epoch": 5, "batch": 1})
    assert set(found) == set(wanted)
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-6, err_msg=key)


def on_another_backend(model_dir, backend):
    """Trains to step 16 in a process of its own; returns what that one printed."""
    code = """
        import sys
        from test_resume_changed import train
        train(sys.argv[1], changes={"trainer": {"train_steps": 16}}, allow_change=["runtime.backend"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(model_dir)],
        cwd=Path(__file__).parent,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


# -- fit ---------------------------------------------------------------------------------------------------------------


def fit(model_dir, **changes):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    arguments = {"epochs": 1, "batch_size": 8, "seed": 0, "class_weight": {0: 1.0, 1: 2.0}, "verbose": False, **changes}
    return es.fit(model, (X, Y), model_dir=model_dir, **arguments)


def test_fit_resumes_with_its_former_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.run.exporting.export_all", lambda *args: [])
    fit(tmp_path / "run")
    before = files(tmp_path / "run")
    for changes, *lines in (
        ({"batch_size": 4}, "batch_size: 8 -> 4", "data: batches an epoch: 3 -> 6"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"shuffle": False}, "shuffle: true -> false"),
        ({"class_weight": {0: 1.0, 1: 3.0}}, "class_weight.1: 2.0 -> 3.0"),
    ):
        with pytest.raises(UsageError) as error:
            fit(tmp_path / "run", epochs=2, **changes)
        assert listed(error) == lines
    assert files(tmp_path / "run") == before
    assert fit(tmp_path / "run", epochs=3).epoch == [0, 1, 2]
    assert [change["key"] for change in attempts(tmp_path / "run")[1]["changes"]] == ["trainer.train_steps"]
