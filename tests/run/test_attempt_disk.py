"""A record that cannot be written: one warning, the run continues, errors are not hidden, and it is written later."""

import contextlib
import resource

import pytest

from everstep.run.record import Run, read


@contextlib.contextmanager
def full_disk():
    """Within the block no file of this process grows beyond a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def run(tmp_path):
    run = Run.open(tmp_path / "run", "mnist/mlp", "jax")
    run.begin(0, "task: {}\n")
    return run


def test_a_record_that_cannot_be_written_is_logged_once_and_written_later(run, caplog):
    with full_disk():
        run.update(100, 1, {"train": {"loss": 0.5}})
        run.update(200, 2)
    assert read(run.directory)["step"] == 0
    (warning,) = caplog.messages
    assert warning == f"{run.directory}/run.json cannot be written: File too large"
    run.update(300, 3)
    assert (read(run.directory)["step"], read(run.directory)["metrics"]["train"]) == (300, {"loss": 0.5})
    with full_disk():
        run.update(400, 4)
    assert len(caplog.messages) == 2


def test_how_a_run_ended_is_not_hidden_by_the_disk(run, caplog):
    with full_disk():
        run.update(100, 1)
        run.finish("failed", "SaveError: no room")
    assert len(caplog.messages) == 1
    assert run.record["attempts"][-1]["reason"] == "SaveError: no room"
    assert [path.name for path in run.directory.iterdir() if path.name.startswith(".")] == []
