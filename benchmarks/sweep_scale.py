"""What a sweep costs beyond its runs: seconds per trial, and the time to resume one with 10,000 trials.

`python -m benchmarks.sweep_scale` prints both. The bars: 0.5 s per trial beyond the run and the start of its process,
5 s to resume. Times depend on the machine: compare them with the start of a Python process, which is printed too.
"""

import argparse
import contextlib
import dataclasses
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OVERHEAD_BAR, RESUME_BAR = 0.5, 5.0
SPACE = """\
task.noise: {low: 0.0, high: 0.3}
task.model.units: [8, 16, 32]
trainer.train_steps: 20
"""
COMMAND = [sys.executable, "-m", "everstep", "sweep", "regression/sine", "--space", "space.yaml"]
COMMAND += ["--sweep-dir", "large"]
_FUNCTION = """
def nothing(values, directory):
    return values["a"]
"""


def overhead(folder: Path, trials: int) -> tuple[float, float]:
    """Returns the seconds of one trial that does nothing, and of its process alone."""
    (folder / "nothing_to_train.py").write_text(_FUNCTION)
    program = (
        "import sys; sys.path.insert(0, '.'); import everstep, nothing_to_train\n"
        "space = {'a': {'low': 0.0, 'high': 1.0}, 'b': [1, 2, 3]}\n"
        "everstep.sweep(nothing_to_train.nothing, space, trials=int(sys.argv[1]), sweep_dir='sweep', verbose=False)\n"
    )
    times = []
    for count in (1, 1 + trials):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", program, str(count)], cwd=folder, check=True)
        times.append(time.monotonic() - begin)
    command = [sys.executable, "-m", "everstep.sweeps.function", "nothing_to_train:nothing", "alone", "a=1"]
    begin = time.monotonic()
    for _ in range(5):
        subprocess.run(command, cwd=folder, check=True)
    return (times[1] - times[0]) / trials, (time.monotonic() - begin) / 5


def fill(folder: Path, trials: int) -> None:
    """Creates a sweep whose trials are all complete: one that is run, and copies of its rows in every table."""
    (folder / "space.yaml").write_text(SPACE)
    subprocess.run([*COMMAND, "--trials", "1"], cwd=folder, check=True, capture_output=True)
    with contextlib.closing(sqlite3.connect(folder / "large" / "sweep.db")) as database, database:
        _copy_trial(database, trials)


def _copy_trial(database: sqlite3.Connection, trials: int) -> None:
    tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
    for table in tables:
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        if "trial_id" not in columns:
            continue
        key = "trial_id" if table == "trials" else columns[0]  # numbered by itself
        rows = database.execute(f"select * from {table} where trial_id = 1").fetchall()
        copies = [
            [_copied(name, value, key, number) for name, value in zip(columns, row, strict=True)]
            for number in range(1, trials)
            for row in rows
        ]
        places = ", ".join("?" * len(columns))
        database.executemany(f"insert into {table} values ({places})", copies)


def _copied(column: str, value: Any, key: str, number: int) -> Any:
    if column == "trial_id":
        return number + 1
    if column == key:
        return None
    return number if column == "number" else value


def resume(folder: Path, trials: int) -> float:
    """Returns the seconds of the same command, with its start, when nothing is left to do."""
    begin = time.monotonic()
    subprocess.run([*COMMAND, "--trials", str(trials)], cwd=folder, check=True, capture_output=True)
    return time.monotonic() - begin


def claim(folder: Path, trials: int) -> float:
    """Returns the seconds until a worker that has just started has one more trial, whose values TPE chooses."""
    from everstep.sweeps.definition import Definition
    from everstep.sweeps.study import SweepStudy

    begin = time.monotonic()
    definition = dataclasses.replace(Definition.load(folder / "large"), trials=trials + 1)
    found = SweepStudy(folder / "large", definition).claim()
    if found is None:
        raise RuntimeError("there is no further trial")
    return time.monotonic() - begin


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints the figures; returns whether a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="trials in the storage")
    parser.add_argument("--runs", type=int, default=10, help="trials that are run")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), options.trials)
        resumed = resume(Path(folder), options.trials)
        claimed = claim(Path(folder), options.trials)
        each, alone = overhead(Path(folder), options.runs)
    print(f"the same command with {options.trials} trials in the storage: {resumed:.2f} s (bar {RESUME_BAR} s)")
    print(f"one more trial from that storage, by TPE: {claimed:.2f} s")
    print(
        f"a trial that does nothing: {each:.2f} s, its process alone {alone:.2f} s: {each - alone:.2f} s more", end=" "
    )
    print(f"(bar {OVERHEAD_BAR} s)")
    return int(resumed > RESUME_BAR or each - alone > OVERHEAD_BAR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
