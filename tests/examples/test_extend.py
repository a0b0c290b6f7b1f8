"""What `docs/how-to/extend.md` shows: a tracker, a source, an export format and an entry point, each in one file."""

import functools
import importlib.util
import os
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.children import forked

from everstep.errors import UsageError
from everstep.export import export_model
from everstep.run.record import read
from everstep.testing import entry_points, exports, streams, trackers
from everstep.testing.entry_points import EPOCHS, Refusal
from everstep.tracking.plugins import TrackedRun

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extend"

pytestmark = [pytest.mark.slow, pytest.mark.backend, pytest.mark.daily("jax")]


@functools.cache
def example(name):
    spec = importlib.util.spec_from_file_location(f"extend_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_files():
    page = (ROOT / "docs" / "how-to" / "extend.md").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for path in EXAMPLES.glob("*.py"):
        assert path.read_text("utf-8") in shown, path.name


# -- a tracker -------------------------------------------------------------------------------------------------------


def read_points(path):
    points = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        step, _, name, value = line.split("\t")
        assert name not in points.setdefault(int(step), {})
        points[int(step)][name] = float(value)
    return points


@pytest.mark.parametrize("check", trackers.CHECKS, ids=lambda check: check.__name__)
def test_tracker(check, tmp_path):
    run = TrackedRun(tmp_path, "id", "name", "jax", 1, {})
    check(lambda: example("tracker").TsvTracker(run), lambda: read_points(tmp_path / "points.tsv"))


# -- a source --------------------------------------------------------------------------------------------------------


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("".join(f"{number},{number**2}\n" for number in range(11)))
    return lambda repeat: example("source").NumberLines(path, batch_size=3, repeat=repeat)


@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_source(check, numbers):
    check(numbers)


def test_source_has_every_line_once_in_an_order_of_each_epoch(numbers):
    stream = numbers(True)
    orders = [np.concatenate([next(stream)[0].ravel() for _ in range(4)]).tolist() for _ in range(2)]
    assert [sorted(order) for order in orders] == [list(range(11))] * 2
    assert orders[0] != orders[1]


# -- an export format ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", exports.CHECKS, ids=lambda check: check.__name__)
def test_export_format(check, tmp_path):
    npz = example("export_format").NPZ
    check(npz.export, npz.load, tmp_path / "export" / npz.file)


def test_export_format_is_asked_for_by_its_name(tmp_path):
    npz = example("export_format").NPZ
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    assert export_model(model, tmp_path / "two", formats=["keras", "npz"]) == [
        tmp_path / "two" / "model.keras",
        tmp_path / "two" / npz.file,
    ]
    with pytest.raises(UsageError) as error:
        export_model(entry_points.compiled_model(), tmp_path / "none", formats="npz")
    assert (error.value.key, error.value.received) == ("formats", "npz")
    assert not (tmp_path / "none").exists()


# -- an entry point --------------------------------------------------------------------------------------------------


class Learn(entry_points.EntryPoint):
    shorter = {"rounds": EPOCHS - 1}
    refused_on_resume = [
        Refusal({"rounds": 2}, "rounds"),
        Refusal({"batch_size": 4}, "batch_size"),
        Refusal({"seed": 6}, "seed"),
    ]
    bad_input = [Refusal({"rounds": 0}, "rounds"), Refusal({"batch_size": "eight"}, "batch_size")]

    def run(self, folder, rounds=EPOCHS, batch_size=entry_points.BATCH, seed=entry_points.SEED):
        actions = [entry_points.kill_in_the_last_epoch()]
        x, y = entry_points.X, entry_points.Y
        model = entry_points.compiled_model()
        example("entry_point").learn(model, x, y, folder / "run", rounds, batch_size, seed, actions)
        return folder / "run"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    return folder, read(Learn().run(folder))


@pytest.mark.parametrize("check", entry_points.CHECKS, ids=lambda check: check.__name__)
def test_entry_point(check, learned):
    check(Learn(), learned[0])


def test_more_rounds_of_the_entry_point(tmp_path, learned):
    entry_points.check_more_epochs_are_as_if_planned(Learn(), tmp_path, learned[1])


def test_bad_input_of_the_entry_point(tmp_path):
    entry_points.check_bad_input(Learn(), tmp_path)


def test_killed_entry_point_resumes(tmp_path, learned):
    start = functools.partial(forked.run, [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # the child imports this file
    entry_points.check_resumes_after_a_kill(
        Learn(), tmp_path, lambda env: start(env={**env, "PYTHONPATH": paths}), learned[1]
    )


if __name__ == "__main__":
    Learn().run(Path(sys.argv[1]))
