"""`everstep sweep`: bad input is one line, exit code 2, before the first trial, and nothing is left behind."""

import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("optuna")

SINE = ("sweep", "regression/sine")
UNITS = "task.model.units=8,16"
TWO = ("--metric", "a", "--metric", "b")
HYPER_CONFIG = """\
seed: 101
data_loader_class: dataset.DataLoader
model_class: models.ModelBuilder
preprocessor_class: preprocessing.Preprocessor
dataset_dir: numbers
training_time_metrics: [dice_coef, iou, acc]
export: {metric: val_accuracy, mode: max}
run_name: baseline-0
model_builder:
  units: [8, 16]
"""
CONFIG = """\
src_code_path: src
data_loader_class: dataset.DataLoader
model_builder_class: models.ModelBuilder
preprocessor_class: preprocessing.Preprocessor
evaluator_class: evaluation.Evaluator
project_name: numbers
epochs: 1
training_time_metrics: [acc]
model_builder: {units: 4, optimizer: {initial_lr: 0.1}}
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep",), "--space: is empty"),
        (("sweep", UNITS), "TARGET: no target is given"),
        (("sweep", "regression/snie", UNITS), "did you mean 'regression/sine'"),
        (SINE, "--space: is empty: no key varies"),
        ((*SINE, "task.model.units=8"), "--space: is empty: no key varies"),
        ((*SINE, "--space", "empty.yaml"), "--space: is empty: no key varies"),
        ((*SINE, "--space", "nowhere.yaml"), "nowhere.yaml"),
        ((*SINE, "--space", "typo.yaml"), "received 8, unknown key: did you mean 'units'? (from typo.yaml:2)"),
        ((*SINE, "task.model.untis=8,16"), "did you mean 'units'"),
        ((*SINE, "task.model.units=8,wide"), "task.model.units: received 'wide'"),
        ((*SINE, "task.model.units=0,8"), "task.model.units: received 0, must be at least 1"),
        ((*SINE, "task.model.units=range(8,1)"), "has no values"),
        ((*SINE, UNITS, "trainer.train_stpes=5"), "did you mean 'train_steps"),
        ((*SINE, UNITS, "stray"), "KEY=VALUES: received 'stray'"),
        ((*SINE, UNITS, "--sampler", "tep"), "--sampler: received 'tep', there is no such one: did you mean 'tpe'"),
        ((*SINE, UNITS, "--pruner", "meidan"), "did you mean 'median'"),
        ((*SINE, UNITS, "--mode", "least"), "--mode: received 'least', expected min or max"),
        ((*SINE, UNITS, *TWO, "--mode", "min", "--mode", "max", "--mode", "min"), "there are 2 metrics and 3 modes"),
        ((*SINE, UNITS, *TWO, "--pruner", "median"), "--pruner: received 'median', works with one metric"),
        ((*SINE, UNITS, "--trials", "0"), "--trials: received 0"),
        ((*SINE, UNITS, "--workers", "0"), "--workers: received 0"),
        ((*SINE, UNITS, "--on", "moon"), "--on: received 'moon'"),
        ((*SINE, UNITS, "--sampler", "cmaes"), "cmaes needs numbers"),
        ((*SINE, "task.noise=interval(0,1)", "--sampler", "grid"), "has no countable values"),
        ((*SINE, UNITS, "--resume-best", "1"), "--resume-best"),
        ((*SINE, UNITS, "--storage", "sqlite:////nowhere/all.db"), "received '/nowhere', there is no such folder"),
    ],
)
def test_bad_input(everstep, tmp_path, words, message):
    (tmp_path / "empty.yaml").write_text("{}\n")
    (tmp_path / "typo.yaml").write_text("task.noise: [0.0]\ntask.model.untis: [8, 16]\n")
    done = everstep(*words)
    assert done.code == 2, done.err
    assert message in done.err
    assert done.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"empty.yaml", "typo.yaml"}


def test_a_storage_with_another_space_or_of_another_version(everstep, tmp_path, monkeypatch):
    from everstep.sweeps import sweeping

    monkeypatch.setattr(sweeping, "run_local", lambda *arguments: None)  # nothing is trained
    url = f"sqlite:///{tmp_path / 'both.db'}"
    assert everstep(*SINE, UNITS, "--storage", url).code == 0
    assert everstep(*SINE, UNITS, "--storage", url, "--trials", "7").code == 0
    done = everstep(*SINE, "task.model.units=8,32", "--storage", url)
    assert done.code == 2
    assert "already has a sweep with another space: 16 there, 32 here" in done.err
    done = everstep(*SINE, UNITS, "trainer.train_steps=5", "--storage", url)
    assert "already has a sweep with another target" in done.err
    with sqlite3.connect(tmp_path / "both.db") as database:
        database.execute("update alembic_version set version_num = 'v99.0.0.a'")
    database.close()
    done = everstep(*SINE, UNITS, "--storage", url)
    assert (done.code, "was written by another version of Optuna" in done.err) == (2, True)
    assert done.err.count("\n") == 1
    assert len(list(Path("runs").iterdir())) == 1


def test_what_would_be_run(everstep):
    done = everstep(*SINE, UNITS, "task.noise=range(0,0.3,0.1)", "--dry-run")
    assert done.code == 0, done.err
    assert "validation_loss (min)" in done.out
    assert sum(line.startswith("trial ") for line in done.out.splitlines()) == 6
    assert not Path("runs").exists()


def test_an_interval_of_whole_numbers_is_searched(everstep):
    done = everstep(*SINE, "task.model.units=tag(log,int(interval(4,256)))", "--trials", "7", "--dry-run")
    assert "4 to 256, log" in done.out
    assert done.out.splitlines()[-1].split() == ["sampler", "tpe"]


def test_the_hyper_config_of_the_components_own_repository(everstep, tmp_path):
    """As it is there, apart from the run's own keys: its list of metrics is no choice, so nothing varies in it."""
    (tmp_path / "runs" / "baseline-0").mkdir(parents=True)
    (tmp_path / "runs" / "baseline-0" / "config.yaml").write_text(CONFIG.replace("training_time_metrics: [acc]\n", ""))
    text = HYPER_CONFIG.partition("model_builder:")[0]
    (tmp_path / "hyper_config.yaml").write_text(text)
    done = everstep("sweep", "--space", "hyper_config.yaml")
    assert (done.code, "--space: is empty: no key varies" in done.err) == (2, True)
    done = everstep("sweep", "--space", "hyper_config.yaml", "model_builder.units=8,16", "--dry-run")
    assert done.code == 0, done.err
    assert "model_builder.units  8, 16" in done.out


def test_the_hyper_config_of_a_project_of_components(everstep, tmp_path):
    """A run's config file with lists in it: `run_name`, the metric and the old names of keys are understood."""
    (tmp_path / "runs" / "baseline-0").mkdir(parents=True)
    (tmp_path / "runs" / "baseline-0" / "config.yaml").write_text(CONFIG)
    (tmp_path / "hyper_config.yaml").write_text(HYPER_CONFIG)
    done = everstep("sweep", "--space", "hyper_config.yaml", "--sampler", "grid", "--dry-run")
    assert done.code == 0, done.err
    assert "baseline-0" in done.out
    assert "val_accuracy (max)" in done.out
    assert "model_builder.units=8" in done.out
    done = everstep("sweep", "baseline-0", "model_builder.optimizer.initial_lr=0.1,0.01", "--dry-run")
    assert "model_builder.optimizer.initial_lr=0.01" in done.out
    done = everstep("sweep", "baseline-0", "model_builder.unist=8,16")
    assert (done.code, "did you mean 'model_builder.units'" in done.err) == (2, True)
    done = everstep("sweep", "baseline-0", "epochs=0,1")
    assert (done.code, "epochs: received 0, must be at least 1" in done.err) == (2, True)


def test_a_config_of_components_for_each_trial(tmp_path):
    from everstep.config import dialect
    from everstep.projects.commands.swept_components import ComponentsTarget, component_space
    from everstep.sweeps.space import create_space

    (tmp_path / "runs" / "baseline-0").mkdir(parents=True)
    (tmp_path / "runs" / "baseline-0" / "config.yaml").write_text(CONFIG)
    (tmp_path / "hyper_config.yaml").write_text(HYPER_CONFIG)
    space, name = component_space(create_space(tmp_path / "hyper_config.yaml"))
    directory = tmp_path / "runs" / "sweep-baseline-0"
    target = ComponentsTarget(name, (), str(tmp_path))
    place = target.run_dir(directory, 1)
    directory.mkdir()
    target.prepare(directory, place, 1, space, {"model_builder.units": 16})
    tree = dialect.load((place / "config.yaml").read_text())
    assert (tree["model_builder"]["units"], tree["data_dir"], tree["epochs"]) == (16, "numbers", 1)
    assert tree["training_time_metrics"] == ["dice_coef", "iou", "acc"]
    assert (directory / "trials" / "1").resolve() == place
    assert target.command(place, space, {})[3:] == ["run", "sweep-baseline-0-1", "--project-root", str(tmp_path)]
