"""Two runs that are there, compared: nothing is run."""

import json
import shutil

import pytest
import typer

from everstep.cli import reproduce as command
from everstep.reproduce.reproducing import compare_runs, reproduce
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


@pytest.fixture
def pair(place):
    """A run and a copy of it, to be changed."""
    shutil.copytree(place.folder / "first", place.folder / "second")
    return place


def edited(place, **changes):
    """Changes the second run's record; a nested key by its dots."""
    path = place.folder / "second" / "run.json"
    record = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split("__")
        holder = record
        for parent in parents:
            holder = holder[parent]
        holder[last] = value
    path.write_text(json.dumps(record))


def verdict(place, **settings):
    return compare_runs(place.folder / "first", place.folder / "second", **settings)


def test_a_copy_is_identical(pair):
    found = verdict(pair)
    assert found.identical
    assert found.lines() == ["identical: the weights after step 8 and 6 logged numbers agree"]


def test_times_do_not_count(pair):
    numbers = pair.folder / "second" / "history.csv"
    header = numbers.read_text().splitlines()[0].split(",")
    assert {"steps_per_second", "eval_seconds"} <= set(header)
    rows = [row.split(",") for row in numbers.read_text().splitlines()]
    for row in rows[1:]:
        row[header.index("steps_per_second")] = "1.0"
    numbers.write_text("\n".join(",".join(row) for row in rows) + "\n")
    assert verdict(pair).identical


def test_the_last_bit_of_a_number_counts(pair):
    numbers = pair.folder / "second" / "history.csv"
    header, first, second = numbers.read_text().splitlines()
    at = header.split(",").index("training_loss")
    cells = second.split(",")
    cells[at] = repr(float(cells[at]) * (1 + 2**-52))
    numbers.write_text(f"{header}\n{first}\n{','.join(cells)}\n")
    found = verdict(pair)
    assert found.outcome.difference.startswith("step 8: training_loss was ")
    assert found.cause.kind == "randomness"


def test_a_package_is_noted_where_the_weights_agree(pair):
    edited(pair, environment__packages={**pair.record()["environment"]["packages"], "keras": "0.1"})
    found = verdict(pair)
    assert found.identical
    assert [cause.kind for cause in found.others] == ["package"]
    assert found.others[0].what.endswith("now it is 0.1")


def test_a_package_is_the_cause_where_they_do_not(pair):
    edited(pair, environment__packages={**pair.record()["environment"]["packages"], "keras": "0.1"}, weights_digest="0")
    found = verdict(pair)
    assert not found.identical
    assert str(found.cause).startswith("package: keras was ")
    assert found.outcome.difference.startswith("step 8: the weights were ")


def test_other_data_is_another_experiment_whatever_its_result(pair):
    data = pair.record()["data"]
    data["train"]["0"]["sha256"] = "0" * 64
    edited(pair, data=data, environment__machine="arm64")
    found = verdict(pair)
    assert not found.identical
    assert found.lines()[:2] == [
        "different, data: train/0 has other content",
        "the weights after step 8 and 6 logged numbers agree nevertheless",
    ]


def test_hardware_is_the_last_to_blame(pair):
    edited(pair, environment__machine="arm64", code__files={}, weights_digest="0")
    found = verdict(pair)
    assert [found.cause.kind, *(cause.kind for cause in found.others)] == ["code", "hardware"]


def test_only_files_that_the_run_has_imported_count(pair):
    files = pair.record()["code"]["files"]
    assert {"reproduce_experiment.py", "reproduce_rate.py"} <= {*files}
    edited(pair, code__changes="0" * 64, code__commit="0" * 40)
    assert verdict(pair).others == ()
    edited(pair, code__files={**files, "reproduce_rate.py": "0" * 64})
    (cause,) = verdict(pair).others
    assert str(cause).startswith("code: other content in reproduce_rate.py (commit ")


def test_the_same_changes_of_a_run_without_files_are_the_same_code(pair):
    assert pair.record()["code"]["dirty"]
    edited(pair, code__changes="0" * 64, code__files=None)
    assert [str(cause) for cause in verdict(pair).others] == [
        f"code: commit {pair.record()['code']['commit'][:12]}, with files changed then and now"
    ]


def test_packages_that_do_not_compute_come_after_those_that_do(pair):
    listed = (pair.folder / "second" / "requirements.txt").read_text()
    (pair.folder / "second" / "requirements.txt").write_text(listed.replace("==", "==0."))
    edited(pair, environment__packages={**pair.record()["environment"]["packages"], "numpy": "0.1"})
    found = [cause.what for cause in verdict(pair).others]
    assert found[0].startswith("numpy was ")
    assert len(found) == 7
    assert found[-1].endswith(" more have other versions, too")
    (pair.folder / "second" / "requirements.txt").unlink()
    assert len(verdict(pair).others) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment__settings": {"XLA_FLAGS": "--fast"}}, "config: the variable XLA_FLAGS was "),
        ({"environment__gpus": ["NVIDIA H200"]}, "hardware: gpus was none, now it is NVIDIA H200"),
        ({"backend": "abacus"}, "config: the backend was "),
    ],
)
def test_other_surroundings_are_named(pair, changes, message):
    edited(pair, **changes)
    assert [cause for cause in verdict(pair).others if str(cause).startswith(message)]


def test_a_file_of_the_data_is_named(pair):
    entry = {"kind": "InputStream", "files": {"train-0.tfrec": {"bytes": 3, "sha256": "a"}}}
    for name, digest in (("first", "a"), ("second", "b")):
        path = pair.folder / name / "run.json"
        record = json.loads(path.read_text())
        record["data"] = {"train": {**entry, "files": {"train-0.tfrec": {"bytes": 3, "sha256": digest}}}}
        path.write_text(json.dumps(record))
    assert str(verdict(pair).cause) == "data: train/files/train-0.tfrec has other content"
    edited(pair, data={"train": {"kind": "InputStream"}})  # as an older version has recorded it
    assert verdict(pair).identical


def test_the_first_step_whose_weights_differ_is_named(pair):
    edited(pair, states={"4": "a" * 64, "8": "b" * 64}, weights_digest="b" * 64)
    numbers = pair.folder / "second" / "history.csv"
    header, first, second = numbers.read_text().splitlines()
    cells = second.split(",")
    cells[header.split(",").index("training_loss")] = "1.0"
    numbers.write_text(f"{header}\n{first}\n{','.join(cells)}\n")
    found = verdict(pair).outcome
    assert (found.step, found.weights) == (4, 8)
    assert found.difference.startswith("step 4: the weights were ")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run.json", b'{"id": "a", "st', "is not valid JSON"),
        ("run.json", b'{"id": "a", "attempts": 3}', "attempts is missing or has the wrong type"),
        ("history.csv", b"step,loss\n8,\xff\n", "cannot be read"),
    ],
)
def test_damaged_files_are_named(pair, name, content, reason):
    path = pair.folder / "second" / name
    path.write_bytes(content)
    with raises_problem(key=str(path), reason=reason):
        reproduce(pair.folder / "second", show=False)


def test_a_run_by_its_id(pair, monkeypatch, capsys):
    monkeypatch.chdir(pair.folder)
    shutil.rmtree(pair.folder / "second")
    identity = pair.record()["id"]
    with pytest.raises(typer.Exit) as ended:
        command.reproduce(identity, with_=str(pair.folder / "first"))
    assert ended.value.exit_code == 0
    assert capsys.readouterr().out.startswith("identical")


def test_a_recorded_digest_of_an_earlier_step_is_used(pair):
    for name in ("first", "second"):
        shutil.rmtree(pair.folder / name / "checkpoints")
    numbers = (pair.folder / "first" / "history.csv").read_text().splitlines()[0]
    for name in ("first", "second"):
        (pair.folder / name / "history.csv").write_text(f"{numbers}\n")
        path = pair.folder / name / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "states": {"2": "abc"}}))
    assert verdict(pair, steps=3).outcome.weights == 2
    edited(pair, states={"2": "abd"})
    assert not verdict(pair, steps=3).identical


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"steps": 0}, {"key": "--steps", "received": 0, "reason": "must be at least 1"}),
        ({"steps": 3}, {"key": "--steps", "received": 3, "remedy": "steps that can be checked: 4, 8"}),
        ({"model_dir": "first"}, {"key": "--model-dir", "received": "first", "reason": "is not empty"}),
    ],
)
def test_bad_requests_are_refused(place, settings, fields):
    with raises_problem(**fields):
        place.again(**settings)


def test_a_bad_request_is_one_line(place):
    done = place.everstep("reproduce", "first", "--with", "nowhere")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "run.json" in done.stderr


def test_a_program_is_not_in_the_record(pair):
    for name in ("config.yaml",):
        path = pair.folder / "first" / name
        path.write_text(path.read_text().replace("experiment: reproduce/file\n", ""))
    run = pair.folder / "first"
    with raises_problem(key=str(run), reason="trained by a program", remedy="--with OTHER"):
        reproduce(run, show=False)


def test_a_run_that_did_not_finish(pair):
    edited(pair, status="interrupted", digest=None, weights_digest=None)
    run = pair.folder / "second"
    with raises_problem(key=str(run), reason="did not finish", remedy="--steps 8"):
        reproduce(run, show=False)
