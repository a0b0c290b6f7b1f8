"""Killed at a random moment of each phase and run again: the same files as uninterrupted, and one MLflow run."""

import collections
import contextlib
import functools
import json
import random
import re
import signal
import sqlite3

import pytest
from components_process import PHASES, Attempt, Clock, Nursery, phase_of
from components_project import write_data, write_run, write_source

from everstep.types import CLOCKS

# Every day on one backend: the other's processes take the same paths, and longer to start.
pytestmark = [pytest.mark.backend, pytest.mark.daily("jax")]

EPOCHS, ROUNDS = 6, 12
SPEED = CLOCKS
KILL, TERM = signal.SIGKILL, signal.SIGTERM


@pytest.fixture(scope="module")
def nursery():
    with contextlib.closing(Nursery()) as forks:
        yield forks


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the data and the database are, which all runs share."""
    folder = tmp_path_factory.mktemp("killed")
    write_data(folder)
    return folder


class Runs:
    """Runs of equal projects, beside an uninterrupted one."""

    def __init__(self, place, nursery, flavour="", seed=0, share=0.25):
        self.place, self.nursery, self.flavour, self.clock = place, nursery, flavour, Clock(seed, share)
        self.ends = []
        place.mkdir(exist_ok=True)
        self.whole = self.project("whole")
        self.clock.watch(self.start(self.whole))

    def project(self, name):
        root = self.place / name
        write_source(root)
        write_run(root, flavour=self.flavour, epochs=EPOCHS)
        return root

    def start(self, root, imports=False, **options):
        arguments = root, self.place.parent / "datasets" / "mnist", f"sqlite:///{self.place.parent}/mlflow.db"
        return Attempt(*arguments, **options) if imports else self.nursery.start(*arguments, **options)

    def end(self, root, phase, how=KILL, imports=False, at_once=False):
        """Starts a run, and ends it at a random moment of a phase, or as soon as it is there; returns how it ended."""
        there = phase_of(root / "runs" / "a") == phase  # an earlier attempt was: this one is first on its way
        attempt = self.start(root, imports)
        alive = attempt.reach(phase)
        was = phase
        if not at_once:
            was = self.clock.wait_in(phase, attempt, self.clock.seconds["start"] if there else 0.0)
        code = attempt.end(how)
        self.ends.append((was, how.name, code))
        assert alive or code == 0, attempt.output()
        return code

    def differences(self, root):
        """What differs from the uninterrupted run."""
        self.start(root).finish()
        mine, theirs = self.found(root), self.found(self.whole)
        return sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))

    @functools.cache  # noqa: B019  they live as long as the module
    def found(self, root):
        """What has to be the same, by name.

        What is not: times, speed and the number of attempts (in `run.json`, events, `history.csv` and the report), the
        run's id, the bytes of a SavedModel, which no two writings have in common, and their digests in `export.json`.
        """
        folder = root / "runs" / "a"
        digests = root / "digests.json"
        self.start(root, action="digests").finish()
        pages = [*folder.glob("*.csv"), *folder.glob("*.md"), *folder.rglob("model-card/*.html")]
        found = {path.name: path.read_bytes() for path in [*pages, *(folder / "reports").iterdir()]}
        found |= {"report.html": _shown(folder / "reports" / "report.html")}
        found |= {"exported/config.yaml": (folder / "exported" / "config.yaml").read_bytes()}
        found |= {"best": (folder / "best" / "info.json").read_bytes(), "weights": json.loads(digests.read_text())}
        found |= {"export.json": _without(json.loads((folder / "exported" / "export.json").read_text()), "files")}
        found |= {"history.csv": _history(folder), "tracked": self.tracked(folder), "state": _record(folder)["digest"]}
        return found | {"left": [str(path) for path in root.rglob("*") if _is_left(path.name)]}

    def tracked(self, folder):
        """What MLflow has of a run: as many runs as there are, their parameters, and every point."""
        run_id = (folder / "run_id.txt").read_text().strip()
        with contextlib.closing(sqlite3.connect(self.place.parent / "mlflow.db")) as database:
            query = "select run_uuid from tags where key = 'everstep.run_id' and value = ?"
            (mine,) = database.execute(query, [run_id]).fetchall()
            query = "select name, status, lifecycle_stage from runs where run_uuid = ?"
            runs = database.execute(query, mine).fetchall()
            query = "select key, step, value from metrics where run_uuid = ? order by key, step, timestamp"
            points = database.execute(query, mine).fetchall()
            params = sorted(database.execute("select key, value from params where run_uuid = ?", mine).fetchall())
        return {"runs": runs, "points": points, "params": params}


def _shown(page):
    """What the report shows, without times, attempts and speed."""
    text = page.read_text()
    data = json.loads(text.split('<script type="application/json" id="data">')[1].partition("</script>")[0])
    runs = [_without(_without(run, "facts"), "marks") for run in data["runs"]]
    curves = [[curve for curve in run.pop("curves") if curve["name"] not in SPEED] for run in runs]
    return {**data, "runs": runs, "curves": curves}


def _history(folder):
    header, *rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    speed = [header.index(name) for name in SPEED if name in header]
    return [[cell for column, cell in enumerate(row) if column not in speed] for row in [header, *rows]]


def _record(folder):
    return json.loads((folder / "run.json").read_text())


def _without(values, name):
    return {key: value for key, value in values.items() if key != name}


def _is_left(name):
    return name.startswith(".everstep-") or name.endswith((".replaced", ".tmp")) or "checkpoint-tmp" in name


@pytest.fixture(scope="module")
def runs(place, nursery):
    return Runs(place / "everyday", nursery)


def test_an_undisturbed_run_is_tracked_as_documented(runs):
    """What all others are compared with."""
    tracked = runs.found(runs.whole)["tracked"]
    assert tracked["runs"] == [("a", "FINISHED", "active")]
    steps = collections.defaultdict(list)
    for key, step, _ in tracked["points"]:
        steps[key].append(step)
    epoch = {"loss", "val_loss", "sparse_categorical_accuracy", "val_sparse_categorical_accuracy"}
    own = ("_model.evaluate_loss", "_model.evaluate_sparse_categorical_accuracy", "sparse categorical ce")
    evaluation = {f"{split}_{name}" for split in ("validation", "test") for name in own}
    assert steps == dict.fromkeys(epoch, [*range(EPOCHS)]) | dict.fromkeys(evaluation, [0])


def test_ended_in_every_phase(runs):
    root = runs.project("cut")
    folder = root / "runs" / "a"
    assert [runs.end(root, phase) for phase in ("start", "train", "export")] == [-KILL] * 3
    # At once: how long a phase takes was measured before, and may be over sooner on a machine that is less busy now.
    assert runs.end(root, "evaluate", TERM, at_once=True) == 128 + TERM
    assert [path for path in folder.rglob("*") if _is_left(path.name)] == []
    assert runs.tracked(folder)["runs"] == [("a", "KILLED", "active")]
    assert runs.end(root, "pages") in (-KILL, 0)  # or it was done already
    print("ended in:", runs.ends)
    assert runs.differences(root) == []


def test_two_processes_on_one_run(runs):
    root = runs.project("cut")
    first = runs.start(root)
    assert first.reach("start")
    second = runs.start(root)
    codes = {first.wait(), second.wait()}
    assert codes == {0, 2}
    assert re.search(r"everstep: error: '.*runs/a' is being trained by process \d+ on host", first.output())


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flavour", ["", "TF"])
def test_many_random_kills(place, nursery, flavour):
    """Once, twice and three times in a row, with and without imports, by all signals; as many projects as rounds."""
    chance, wrong = random.Random(7), {}
    many = Runs(place / f"many{flavour}", nursery, flavour, seed=7, share=0.8)
    for number in range(ROUNDS):
        root = many.project(f"cut{number}")
        first = PHASES[number % len(PHASES)]
        for phase in [first] * chance.choice([1, 1, 2, 3]):
            many.end(root, phase, chance.choice([KILL, KILL, TERM, signal.SIGINT]), imports=number % 4 == 3)
        if different := many.differences(root):
            wrong[root.name] = different
    print(f"{len(many.ends)} ends in {ROUNDS} runs: {collections.Counter(many.ends)}; mismatches: {wrong}")
    assert not wrong
