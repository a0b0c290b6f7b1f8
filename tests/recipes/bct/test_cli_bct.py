"""`everstep bct evaluate`, as a user runs it."""

import json

import keras
import numpy as np
import pytest

from everstep.bct import with_classifier
from everstep.checkpoint.remote import publish
from everstep.cli.main import main
from everstep.recipes.bct.commands.bct import evaluate
from everstep.testing.problems import raises_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models that embed, and data for them."""
    folder = tmp_path_factory.mktemp("bct")
    for seed, name in enumerate(("old", "new")):
        keras.utils.set_random_seed(seed)
        inner = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4 + seed)])
        with_classifier(inner, ["a", "b"]).save(folder / f"{name}.keras")
    rng = np.random.default_rng(0)
    labels = np.array(["a", "b", "c"])[np.arange(30) % 3]
    np.savez(folder / "test.npz", x=rng.normal(size=(30, 6)).astype("float32"), y=labels)
    np.savez(folder / "two.npz", x=rng.normal(size=(20, 6)).astype("float32"), y=labels[labels != "c"][:20])
    np.savez(folder / "empty.npz", x=np.zeros((0, 6), "float32"), y=np.zeros(0, "int32"))
    np.savez(folder / "x.npz", x=np.zeros((3, 6), "float32"))
    np.savez(folder / "wide.npz", x=np.zeros((3, 9), "float32"), y=np.zeros(3, "int32"))
    (folder / "text.npz").write_text("no archive")
    return folder


def check(text: str) -> None:
    """Compares the JSON with what these models and data must give."""
    found = json.loads(text)
    assert list(found["rows"]) == ["old/old", "new/old", "new/new"]
    assert set(found["rows"]["new/old"]) == {"mAP", "top-1", "top-5", "TAR@FAR=0.1", "TPIR@FPIR=0.2"}
    assert all(0 <= value <= 1 for row in found["rows"].values() for value in row.values())
    assert found["paragon"] == "new/new"
    assert found["compatible"] == (found["rows"]["new/old"]["mAP"] > found["rows"]["old/old"]["mAP"])


def test_figures(folder, capsys):
    old, new, data, gallery = (str(folder / name) for name in ("old.keras", "new.keras", "test.npz", "two.npz"))
    evaluate(old, new, data, gallery, far=0.1, fpir=0.2, json=True)
    check(capsys.readouterr().out)
    evaluate(old, new, data, paragon=old)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].split() == ["query/gallery", "mAP", "top-1", "top-5", "TAR@FAR=0.001", "TPIR@FPIR=0.01"]
    assert [line.split()[0] for line in lines[1:5]] == ["old/old", "new/old", "new/new", "paragon"]
    assert lines[1].split()[-1] == "-", "every image has a mate: there are no false alarms to count"
    assert "none: paragon is not above old/old" in printed


@pytest.mark.full
def test_figures_from_the_command_line(shell, folder):
    old, new, data, gallery = (str(folder / name) for name in ("old.keras", "new.keras", "test.npz", "two.npz"))
    rates = ["--far", "0.1", "--fpir", "0.2"]
    outcome = shell("bct", "evaluate", old, new, "--data", data, "--gallery", gallery, *rates, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    check(outcome.out)


def test_models_and_data_in_a_store(folder, capsys, monkeypatch, tmp_path):
    """The same figures; what is missing there is named by its URL."""
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    names = ("old.keras", "new.keras", "test.npz", "two.npz")
    for name in names:
        publish(folder / name, f"memory://models/{name}")
    evaluate(*(f"memory://models/{name}" for name in names), far=0.1, fpir=0.2, json=True)
    stored = capsys.readouterr().out
    evaluate(*(str(folder / name) for name in names), far=0.1, fpir=0.2, json=True)
    assert capsys.readouterr().out == stored
    wrong = {"memory://models/no.npz": "no such file: 'memory://models/no.npz'", "memory:/x.npz": "lacks a slash"}
    wrong |= {"memory://models/*.npz": "matches 2 files", "nowhere://a/x.npz": "nowhere"}
    for url, reason in wrong.items():
        with raises_problem(key="--data", reason=reason) as caught:
            evaluate("old", "new", url)
        assert "\n" not in str(caught.value)


def test_bad_data_is_refused_before_a_model_is_loaded(everstep, folder):
    wrong = {"none.npz": "no such file", "x.npz": "no 'y'", "text.npz": "cannot be read as .npz"}
    for name, message in wrong.items():
        outcome = everstep("bct", "evaluate", "old", "new", "--data", str(folder / name))
        assert outcome.code == 2
        assert message in outcome.err
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["old.keras", "new.keras", "--data", "empty.npz"], "data: is empty"),
        (["old.keras", "new.keras", "--data", "wide.npz"], "cannot read an array of shape (3, 9)"),
        (["no.keras", "new.keras", "--data", "test.npz"], "no such file or directory"),
        (["text.npz", "new.keras", "--data", "test.npz"], "expected a .keras file"),
        ([".", "new.keras", "--data", "test.npz"], "name a run that has finished"),
        (["old.keras", "new.keras", "--data", "test.npz", "--metric", "map"], "metric: received 'map'"),
        (["old.keras", "new.keras", "--data", "test.npz", "--far", "2"], "far: received 2.0"),
        (["old.keras", "new.keras", "--data", "test.npz", "--metric", "TPIR@FPIR=0.01"], "cannot be computed"),
        (["old.keras", "new.keras", "--data", "test.npz", "--backend", "theano"], "received 'theano', unknown backend"),
    ],
)
def test_bad_input_is_one_line(folder, capfd, words, message):
    """In this process, which has loaded Keras."""
    places = [str(folder / word) if "." in word and "@" not in word else word for word in words]
    assert main(["bct", "evaluate", *places]) == 2
    printed = capfd.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1, printed
