"""The Orbax checkpointer: exact bits, retention, kills in the middle of a save, and quiet logs."""

import logging
import os
import signal
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from tests.children import forked

from everstep.checkpoint import manifest
from everstep.checkpoint.checkpointer import NoopCheckpointer
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

STATE = {
    "model/dense.1/kernel": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "model/dense.1": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "model/half": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16) / 3,
    "model/eighth": np.ones(3, ml_dtypes.float8_e4m3fn),
    "model/nan": np.array([0x7FC00001, 0xFF800000, 0x7F800001, 0x80000000], np.uint32).view(np.float32),
    "model/empty": np.zeros((0, 3), ml_dtypes.bfloat16),
    "model/flags": np.array([True, False]),
    "optimizer/iteration": np.array(2**40 + 1, np.int64),
    "optimizer/scalar": np.float64(1 / 3),
    "task.seed/state": np.array([2**63 + 5, 1], np.uint64),
    "task.small": np.array(-3, np.int8),
}
META = {
    "epoch": 3,
    "stream": {"seed": 2**60, "position": [1, 2]},
    "best": float("inf"),
    "name": "ü",
    "x": 0.1,
}


@pytest.fixture
def checkpointer(tmp_path):
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", Retention(3))
    yield checkpointer
    checkpointer.close()


def test_every_bit_is_restored(checkpointer):
    checkpointer.save(10, STATE, META)
    state, meta = checkpointer.restore()
    assert meta == META
    assert set(state) == set(STATE)
    for key, array in state.items():
        assert type(array) is np.ndarray, key
        assert (array.dtype, array.shape) == (STATE[key].dtype, STATE[key].shape), key
        assert array.tobytes() == STATE[key].tobytes(), key


@pytest.mark.parametrize("shapes", [{}, {"a": (0, 2)}])
def test_an_empty_state(checkpointer, shapes):
    checkpointer.save(1, {key: np.zeros(shape, np.int64) for key, shape in shapes.items()}, {})
    state, _ = checkpointer.restore(1)
    assert {key: array.shape for key, array in state.items()} == shapes


def test_layout_and_reading_creates_no_files(checkpointer, tmp_path):
    assert checkpointer.latest() is None
    assert not list(tmp_path.iterdir())
    checkpointer.save(10, STATE, META)
    checkpointer.wait()
    assert os.listdir(tmp_path / "checkpoints") == ["10"]
    assert {"state", "meta", "manifest.json"} < set(os.listdir(tmp_path / "checkpoints" / "10"))


def test_the_newest_are_kept(checkpointer):
    for step in (5, 10, 20, 100, 30):
        checkpointer.save(step, {"a": np.array(step)}, {"step": step})
    checkpointer.wait()
    assert checkpointer.steps() == [20, 30, 100]
    assert checkpointer.latest() == 100
    assert checkpointer.restore(30)[1] == {"step": 30}


def test_the_last_save_is_kept_even_if_it_is_not_the_newest_step(checkpointer):
    for step in (100, 200, 300, 50):
        checkpointer.save(step, {"a": np.array(step)}, {})
    checkpointer.wait()
    assert checkpointer.steps() == [50, 100, 200, 300]


def test_saving_a_step_again_changes_nothing(checkpointer, tmp_path):
    checkpointer.save(1, {"a": np.array(1)}, {})
    checkpointer.wait()
    before = (tmp_path / "checkpoints" / "1").stat().st_mtime_ns
    checkpointer.save(1, {"a": np.array(2)}, {})
    assert checkpointer.restore(1)[0]["a"] == 1
    assert (tmp_path / "checkpoints" / "1").stat().st_mtime_ns == before


def test_a_missing_step_is_reported_with_the_existing_ones(checkpointer):
    with raises_problem(reason="contains no checkpoints"):
        checkpointer.restore()
    for step in (1, 2):
        checkpointer.save(step, {"a": np.array(1)}, {})
    checkpointer.wait()
    with raises_problem(reason="contains no checkpoint of step 7", remedy="it has 1, 2"):
        checkpointer.restore(7)


def test_another_checkpointer_continues_in_the_same_directory(checkpointer, tmp_path):
    checkpointer.save(1, {"a": np.array(1)}, {})
    checkpointer.wait()
    other = OrbaxCheckpointer(tmp_path / "checkpoints", Retention(3))
    other.save(2, {"a": np.array(2)}, {})
    other.close()
    assert checkpointer.latest() == 2


def test_leftovers_of_a_kill_are_ignored_and_removed(checkpointer, tmp_path):
    directory = tmp_path / "checkpoints"
    checkpointer.save(1, {"a": np.array(1)}, {})
    checkpointer.wait()
    (directory / ".everstep-abc-2.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (directory / ".everstep-abc-0").mkdir()
    again = OrbaxCheckpointer(directory)
    assert again.steps() == [1]
    again.save(2, {"a": np.array(2)}, {})
    again.close()
    assert sorted(os.listdir(directory)) == ["1", "2"]


SAVE_FOREVER = """
import itertools, sys
import numpy as np
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
checkpointer = OrbaxCheckpointer(sys.argv[1], Retention(2))
first = (checkpointer.latest() or 0) + 1
for step in itertools.count(first):
    checkpointer.save(step, {f"model/{i}": np.full(50_000, step) for i in range(8)}, {"step": step})
    print(step, flush=True)
"""


def test_after_a_kill_at_any_moment_every_visible_step_is_complete(tmp_path):
    directory = tmp_path / "checkpoints"
    for attempt in range(3):
        process = forked.Popen([sys.executable, "-c", SAVE_FOREVER, directory], stdout=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.readline()  # the second save has started, so the first one is on disk
        time.sleep(0.02 + 0.025 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    checkpointer = OrbaxCheckpointer(directory)
    assert checkpointer.steps()
    for step in checkpointer.steps():
        state, meta = checkpointer.restore(step)
        assert meta == {"step": step}
        assert all((array == step).all() and array.size == 50_000 for array in state.values())
    checkpointer.close()


def test_orbax_logs_nothing_and_the_root_logger_keeps_its_handlers(tmp_path):
    code = """
import logging, sys
from everstep.checkpoint.orbax import OrbaxCheckpointer
import numpy as np
assert not logging.root.handlers
checkpointer = OrbaxCheckpointer(sys.argv[1])
logging.basicConfig(level=logging.INFO)
checkpointer.save(1, {"a": np.ones(3)}, {})
checkpointer.restore()
checkpointer.close()
import absl.logging
absl.logging.info("the user's own")
print(*{"keras", "tensorflow"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    lines = [line for line in result.stderr.splitlines() if "jax._src" not in line]
    assert lines == ["INFO:absl:the user's own"]
    assert result.stdout.strip() == ""


def test_other_absl_warnings_are_logged(checkpointer, caplog):
    logging.getLogger("absl").warning("careful")
    assert "careful" in caplog.text


def test_noop_checkpointer_saves_nothing():
    checkpointer = NoopCheckpointer()
    checkpointer.save(1, STATE, META)
    assert (checkpointer.steps(), checkpointer.latest()) == ([], None)
    with raises_problem(reason="keeps no checkpoints"):
        checkpointer.restore()
    checkpointer.close()


def test_a_reader_rereads_a_step_that_the_trainer_replaces(tmp_path, monkeypatch):
    """An evaluator may read a checkpoint while the trainer replaces it: it then reads the new one."""
    trainer, evaluator = OrbaxCheckpointer(tmp_path, run="one"), OrbaxCheckpointer(tmp_path, run="one", repair=False)
    trainer.save(5, STATE, {"save": 1})
    trainer.wait()
    verify = manifest.verify

    def replaced_meanwhile(path, chosen):
        monkeypatch.setattr(manifest, "verify", verify)
        files = sorted(path.rglob("*"))
        trainer.save(5, STATE, {"save": 2}, replace=True)
        trainer.wait()
        assert not all(file.exists() for file in files)
        raise manifest.Damaged("its files are gone")

    monkeypatch.setattr(manifest, "verify", replaced_meanwhile)
    assert evaluator.restore(5)[1] == {"save": 2}
    trainer.close()


def test_the_id_of_the_run_may_become_known_later(tmp_path):
    ids = iter(["", "one", "two"])
    trainer, evaluator = OrbaxCheckpointer(tmp_path, run="one"), OrbaxCheckpointer(tmp_path, run=lambda: next(ids))
    trainer.save(5, STATE, META)
    trainer.close()
    assert evaluator.restore(5)[1] == META
    assert evaluator.restore(5)[1] == META
    with raises_problem(reason="written by another run"):
        evaluator.restore(5)
