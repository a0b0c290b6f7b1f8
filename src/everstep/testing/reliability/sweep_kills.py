"""A sweep whose workers and trials are killed at random: is every trial complete, once, with the bits of a run alone?

20 trials are swept with 2 workers. Ten times, at a random instant, a process gets SIGKILL: a trial in the middle of its
training, a worker, or the sweep itself, which is then started again. In the end all trials must be complete, none
twice, and the digest of each that of the same command run alone, without a kill. It prints how many trials were resumed
from a checkpoint: with none, the digests would prove nothing.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from everstep.sweeps import Definition, SweepStudy

SPACE = """\
task.model.units: [8, 16]
trainer.optimizer_config.learning_rate.cosine.initial_learning_rate: {low: 1e-3, high: 1e-1, log: true}
trainer.train_steps: 6000
trainer.steps_per_loop: 50
trainer.validation_interval: 500
trainer.checkpoint_interval: 200
"""
KINDS = ("trial", "trial", "worker", "sweep")
_PATIENCE = 3600.0


@dataclasses.dataclass
class Figures:
    """The figures of a sweep under kills.

    Attributes:
      trials: Trials that were requested.
      complete: Trials that are complete.
      kills: Processes killed, by kind.
      attempts: Attempts of all trials together.
      resumed: Trials that were resumed from a checkpoint.
      wrong: Violations, one line each.
    """

    trials: int
    complete: int = 0
    kills: dict[str, int] = dataclasses.field(default_factory=dict)
    attempts: int = 0
    resumed: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)

    def line(self) -> str:
        """Returns the figures on one line."""
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"trials {self.trials}, complete {self.complete}, attempts {self.attempts}, resumed {self.resumed} | "
            f"kills: {kills or 'none'} | violations: {len(self.wrong)} | {'passed' if not self.wrong else 'NOT PASSED'}"
        )


def measure(folder: Path, trials: int, workers: int, kills: int, seed: int = 0) -> Figures:
    """Sweeps in a folder under kills; compares every trial with the same run alone."""
    (folder / "space.yaml").write_text(SPACE)
    words = ["sweep", "regression/sine", "--space", "space.yaml", "--sampler", "random", "--sweep-dir", "sweep"]
    command = [*_EVERSTEP, *words, "--trials", str(trials), "--workers", str(workers)]
    figures, choice = Figures(trials), random.Random(seed)
    with open(folder / "sweep.log", "ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while sum(figures.kills.values()) < kills and process.poll() is None:
            time.sleep(choice.uniform(0.5, 5.0))
            kind = choice.choice(KINDS)
            victims = _wait_for_victims(process, kind)
            if not victims:
                continue
            time.sleep(choice.uniform(0.0, 0.5))
            if not _kill(choice.choice(victims)):
                continue
            figures.kills[kind] = figures.kills.get(kind, 0) + 1
            if kind == "sweep":
                process.wait()
                process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        if process.wait(_PATIENCE) != 0:
            figures.wrong.append(
                f"the sweep ended with {process.returncode}: {(folder / 'sweep.log').read_text()[-500:]}"
            )
    _compare(folder, figures)
    return figures


_EVERSTEP = [sys.executable, "-m", "everstep"]


def _compare(folder: Path, figures: Figures) -> None:
    definition = Definition.load(folder / "sweep")
    study = SweepStudy(folder / "sweep", definition)
    found = study.trials()
    numbers = [trial.number for trial in found]
    if numbers != list(range(figures.trials)):
        figures.wrong.append(f"trials {numbers}, not 0 to {figures.trials - 1}")
    for trial in found:
        figures.complete += trial.state.name == "COMPLETE"
        if trial.state.name != "COMPLETE":
            figures.wrong.append(f"trial {trial.number} is {trial.state.name}: {trial.user_attrs.get('reason')}")
            continue
        record = _record(folder / "sweep" / "trials" / str(trial.number))
        figures.attempts += len(record["attempts"])
        figures.resumed += any(attempt["from_step"] for attempt in record["attempts"])
        values = definition.space.stored(trial)
        alone = folder / "alone" / str(trial.number)
        command = definition.target.command(alone, definition.space, values)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            figures.wrong.append(f"trial {trial.number} alone ended with {done.returncode}: {done.stderr[-300:]}")
            continue
        expected = _record(alone)
        for key in ("status", "step", "digest", "weights_digest"):
            if record[key] != expected[key]:
                figures.wrong.append(f"trial {trial.number}: {key} {record[key]!r}, alone {expected[key]!r}")


def _record(directory: Path) -> dict:
    return dict(json.loads((directory / "run.json").read_text()))


def _wait_for_victims(sweep: subprocess.Popen[bytes], kind: str) -> list[int]:
    """Returns the processes to choose from, of trials those that have saved a checkpoint; none after a minute."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and sweep.poll() is None:
        found = processes(sweep.pid, kind)
        if kind == "trial":
            found = [pid for pid in found if _has_checkpoint(pid)]
        if found:
            return found
        time.sleep(0.01)
    return []


def _has_checkpoint(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        checkpoints = Path(words[words.index("--model-dir") + 1], "checkpoints")
        return any(path.name.isdecimal() for path in checkpoints.iterdir())
    return False


def processes(sweep: int, kind: str) -> list[int]:
    """Returns the processes of a sweep: itself, its workers, or those of its trials."""
    workers = _children(sweep)
    if kind == "sweep":
        return [sweep] if workers else []
    return workers if kind == "worker" else [pid for worker in workers for pid in _children(worker)]


def _children(pid: int) -> list[int]:
    """Returns the processes that a process has started, from Linux's own list."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> bool:
    """Kills a process; returns whether it was still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
