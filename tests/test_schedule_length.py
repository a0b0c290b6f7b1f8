"""A learning rate without a length ends with training, and keeps that end when the run resumes."""

import pytest

import everstep as es
from everstep.config import load_file
from everstep.run.record import read
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


def run(directory, allow_change=(), verbose=False, **trainer):
    params = es.get_exp_config("mnist/local")
    every = {"steps_per_loop": 2, "checkpoint_interval": 2, "validation_interval": 100, "validation_steps": 1}
    params.override({"task": {"num_samples": 320}, "trainer": {**every, **trainer}})
    es.run_experiment(
        es.get_task(params.task),
        params,
        directory,
        "train",
        export=False,
        verbose=verbose,
        allow_change=allow_change,
    )
    stored = load_file(directory / "config.yaml")["trainer"]
    return stored["optimizer_config"]["learning_rate"]["cosine"]["decay_steps"], read(directory)


WARMUP = {"warmup": {"type": "linear", "linear": {"warmup_share": 0.5}}}


def warmup_steps(directory):
    return load_file(directory / "config.yaml")["trainer"]["optimizer_config"]["warmup"]["linear"]["warmup_steps"]


def test_in_steps_and_in_epochs(tmp_path):
    steps, record = run(tmp_path / "steps", train_steps=4)
    epochs, same = run(tmp_path / "epochs", epochs=0.4)
    assert (steps, epochs, record["step"]) == (4, 4, 4)
    rate = {"learning_rate": {"cosine": {"decay_steps": 4}}}
    explicit = run(tmp_path / "explicit", train_steps=4, optimizer_config=rate)[1]
    assert record["digest"] == same["digest"] == explicit["digest"]


def test_a_run_that_resumes_keeps_the_length_it_began_with(tmp_path, capsys):
    run(tmp_path, train_steps=4)
    length, record = run(tmp_path, train_steps=6, verbose=True)
    printed = capsys.readouterr().err
    assert (
        "the learning rate keeps its length of 4 steps, with which the run began; trainer.optimizer_config" in printed
    )
    assert "resumed at step 4, attempt 2\n" in printed
    assert (length, record["step"]) == (4, 6)
    rate = {"learning_rate": {"cosine": {"decay_steps": 8}}}
    with raises_problem(key="trainer.optimizer_config.learning_rate.cosine.decay_steps", reason="4 -> 8"):
        run(tmp_path, train_steps=8, optimizer_config=rate)
    with raises_problem(key="trainer.train_steps", received=4, reason="but this run has trained 6 steps already"):
        run(tmp_path, train_steps=4)


def test_fewer_epochs_than_are_trained_are_refused_in_epochs(tmp_path):
    run(tmp_path, epochs=3)
    for epochs, received in ((2, 2), (1.5, 1.5)):
        with raises_problem(
            key="trainer.epochs", received=received, reason="has trained 3 epochs already", remedy="ask for 3 or more"
        ):
            run(tmp_path, epochs=epochs)


@pytest.mark.daily("torch")
def test_a_warmup_that_is_a_share_of_training_keeps_its_steps(tmp_path, capsys):
    record = run(tmp_path / "share", train_steps=4, optimizer_config=WARMUP)[1]
    in_steps = {"warmup": {"type": "linear", "linear": {"warmup_steps": 2}}}
    assert record["digest"] == run(tmp_path / "steps", train_steps=4, optimizer_config=in_steps)[1]["digest"]
    assert run(tmp_path / "epochs", epochs=0.4, optimizer_config=WARMUP)[1]["digest"] == record["digest"]
    capsys.readouterr()
    run(tmp_path / "share", train_steps=8, optimizer_config=WARMUP, verbose=True)
    assert "the warmup keeps its length of 2 steps, with which the run began" in capsys.readouterr().err
    assert warmup_steps(tmp_path / "share") == 2
