"""`everstep flow`: a run from any folder of the project; bad input is one line, exit code 2, nothing left behind."""

import json

import pytest
from flow_project import write_numbers

from everstep.cli.main import main
from everstep.run.record import read

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def flow(project, monkeypatch, capsys):
    """Runs `everstep flow …` in a folder of the project."""
    monkeypatch.chdir(project / "data" / "raw")

    def run(*words):
        code = main(("flow", *words))
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "NAME: no task is given: everstep flow NAME; tasks: More, Numbers_A, Numbers_B, OwnRun, Unfinished"),
        (("Numbers_C",), "task: received 'Numbers_C', there is no such task"),
        (("Unfinished",), "lacks preprocessing_train() and build_model()"),
        (("Numbers_B", "Numbers_B.epohc=1"), "did you mean 'epoch'"),
        (("Numbers_B", "catalog.numbers.rwa=x"), "did you mean 'numbers.raw'"),
        (("Numbers_B", "--backend", "theano"), "received 'theano', unknown backend"),
        (("Numbers_B", "--model-dir", "s3://bucket/run"), "--model-dir: received 's3://bucket/run'"),
        (("Numbers_B", "--model-dir", ""), "--model-dir: received ''"),
        (("Numbers_B", "Numbers_B.epoch"), "Numbers_B.epoch"),
        (("Numbers_B", "Numbers_B.seed=-1"), "Numbers_B.seed: received -1"),
        (("Numbers_B.epoch=1",), "NAME: no task is given"),
        (("Numbers_B", "-m", "Numbers_B.epoch=1"), "-m: received 'Numbers_B.epoch=1', no parameter has several"),
        (("Numbers_B", "-m", "Numbers_B.epohc=1,2"), "did you mean 'epoch'"),
        (("Numbers_B", "-m", "Numbers_B.epoch=1,two"), "Numbers_B.epoch: received 'two'"),
        (("Numbers_B", "epochs=5"), "write Numbers_B.epoch=5"),
        (("Numbers_B", "--lr", "5"), "a value is written without dashes: optimizer.learning_rate=5"),
        (("Numbers_B", "--epochs", "5"), "a value is written without dashes: Numbers_B.epoch=5"),
    ],
)
def test_bad_input(flow, project, words, message):
    code, output = flow(*words)
    assert code == 2
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not (project / "runs").exists()


def test_a_name_that_the_catalog_has_not_is_told_with_the_nearest(flow, project):
    (project / "train.py").write_text((project / "train.py").read_text().replace("numbers.raw", "numbers.rwa"))
    code, output = flow("Numbers_A")
    assert code == 2
    assert "did you mean 'numbers.raw'" in output.err.splitlines()[-1]
    assert not (project / "runs").exists()


def test_outside_a_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(("flow", "Numbers_A")) == 2
    output = capsys.readouterr().err
    assert "everstep new PROJECT" in output
    assert output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_code_that_cannot_be_imported_is_named_with_its_line(flow, project):
    (project / "train.py").write_text("import everstep\n\nprint(nobody)\n")
    code, output = flow("Numbers_A")
    assert code == 2
    assert f"{project}/train.py:3: NameError" in output.err


@pytest.mark.full
def test_a_run_from_inside_the_project_with_another_seed_gives_other_numbers(finished, monkeypatch, capsys):
    root = finished.directory.parent.parent
    monkeypatch.chdir(root / "data" / "raw")
    code = main(("flow", "Numbers_B", "Numbers_B.validation_split=0.25", "Numbers_B.seed=8", "--json"))
    output = capsys.readouterr()
    assert code == 0, output.err
    result = json.loads(output.out)
    assert result["task"] == "Numbers_B"
    assert result["metrics"].keys() == finished.metrics.keys()
    assert result["metrics"]["test loss"] != finished.metrics["test loss"]
    assert result["run"].startswith(f"{root}/runs/Numbers_B-")
    assert read(result["run"])["weights_digest"] != read(finished.directory)["weights_digest"]


def test_a_sweep_as_hydra_users_type_it(project, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(project)
    assert main(("sweep", "Numbers_B", "Numbers_B.epoch=1,2", "seed=1,2", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert [line.split()[2:] for line in shown.splitlines() if line.startswith("trial ")] == [
        ["Numbers_B.epoch=1", "Numbers_B.seed=1"],
        ["Numbers_B.epoch=1", "Numbers_B.seed=2"],
        ["Numbers_B.epoch=2", "Numbers_B.seed=1"],
        ["Numbers_B.epoch=2", "Numbers_B.seed=2"],
    ]


def test_a_sweep_of_a_task_that_is_not_there(project, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(project)
    assert main(("sweep", "Numbers_C", "Numbers_C.epoch=1,2")) == 2
    assert "did you mean 'Numbers_B'" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_every_combination_is_a_run(project, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(project)
    assert main(("flow", "Numbers_B", "-m", "Numbers_B.epoch=1,2", "seed=1,2")) == 0
    (directory,) = (project / "runs").glob("sweep-Numbers_B-*")
    records = [read(directory / "trials" / str(number)) for number in range(4)]
    assert [record["flow"]["complete"] for record in records] == [True] * 4
    assert [record["epoch"] for record in records] == [1, 1, 2, 2]
    assert len({record["digest"] for record in records}) == 4


@pytest.mark.full
@pytest.mark.daily("torch")
@pytest.mark.timeout(1200)
def test_a_sweep_with_a_failed_trial_says_why_and_exits_with_1(project, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(project)
    assert main(("flow", "Numbers_B", "-m", "epoch=1,2", "Numbers_B.fails_in=2", "validation_split=0.2")) == 1
    output = capsys.readouterr()
    (directory,) = (project / "runs").glob("sweep-Numbers_B-*")
    found = json.loads((directory / "trials.json").read_text())
    assert found["metrics"] == ["validation_loss"]
    assert [row["state"] for row in found["trials"]] == ["complete", "fail"]
    assert found["trials"][1]["reason"] == "RuntimeError: the disk is on fire"
    assert "1 complete, 1 failed" in output.out
    assert "\nvalidation_loss " in output.out
    assert "1 of 2 trials failed; trial 1: RuntimeError: the disk is on fire" in output.err


def test_the_name_of_a_task_that_no_file_has_is_refused_before_anything_is_imported(flow, project):
    with open(project / "train.py", "a", encoding="utf-8") as file:
        file.write("\nraise RuntimeError('imported')\n")
    code, output = flow("Numbers_C")
    assert code == 2
    assert "there is no such task" in output.err
    assert "did you mean 'Numbers_B'" in output.err
    assert output.err.count("\n") == 1
    code, output = flow("Numbers_B")
    assert "RuntimeError: imported" in output.err


def test_tasks_that_are_made_while_a_file_is_imported_are_found(flow, project):
    with open(project / "train.py", "a", encoding="utf-8") as file:
        file.write(
            "\nMade = [type('Numbers' + end, (Unfinished,), {'__module__': __name__}) for end in ('_C', '_D')]\n"
        )
    code, output = flow("Numbers_C")
    assert code == 2
    assert "lacks preprocessing_train()" in output.err


def test_changed_data_advises_a_new_run(flow, project):
    assert flow("Numbers_B", "Numbers_B.epoch=1")[0] == 0
    (directory,) = (project / "runs").iterdir()
    record = read(directory)
    record["flow"]["complete"] = False  # as if it had been killed before its end
    (directory / "run.json").write_text(json.dumps(record))
    write_numbers(project / "data" / "raw" / "numbers.npz", seed=1)
    code, output = flow("Numbers_B", "Numbers_B.epoch=1")
    assert code == 2
    assert "--new (in Python: new=True)" in output.err
    assert "use another directory" not in output.err
    code, output = flow("Numbers_B", "Numbers_B.epoch=1", "--model-dir", str(directory))
    assert "use another directory" in output.err
