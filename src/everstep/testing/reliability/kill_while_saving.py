"""A process that saves 100 MB back to back is killed, 200 times, at random instants.

After each kill the newest checkpoint is loaded and compared bit by bit; a new process resumes from there. The bars: it
loads every time, and is at most one interval old: the save before the last one that was handed over.
"""

import dataclasses
import random
import sys
from pathlib import Path

from everstep.errors import TrainingError, UsageError
from everstep.testing.reliability.saver import Plan, Saver, is_whole, temporaries

ENDLESS = 10**9


@dataclasses.dataclass(frozen=True)
class Kill:
    """What a kill left.

    Attributes:
      amid: Whether a save was being written.
      whole: Whether the newest checkpoint loads, and is all of what was saved.
      age: By how many saves it is behind the last one that was handed over.
    """

    amid: bool
    whole: bool
    age: int


@dataclasses.dataclass(frozen=True)
class Figures:
    """All kills together."""

    size: int
    kills: list[Kill]

    def passed(self) -> bool:
        """Returns whether both bars were met."""
        return all(kill.whole and kill.age <= 1 for kill in self.kills)

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"kills {len(self.kills)} while saving {self.size / 1e6:g} MB back to back, "
            f"{sum(kill.amid for kill in self.kills)} of them in the middle of a write | newest checkpoint whole "
            f"{sum(kill.whole for kill in self.kills)} of {len(self.kills)}, worst age "
            f"{max(kill.age for kill in self.kills)} interval(s) | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, kills: int, size: int, seed: int = 0) -> Figures:
    """Kills a saver that often, each time in the same directory."""
    plan = Plan(str(folder / "checkpoints"), size, ENDLESS)
    span = 2 * _seconds_per_save(plan)
    choice = random.Random(seed)
    done = []
    for number in range(kills):
        done.append(kill_once(plan, choice.uniform(0, span)))
        print(f"\r{number + 1} of {kills}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Figures(size, done)


def kill_once(plan: Plan, after: float) -> Kill:
    """Starts a saver, kills it, and checks what it left."""
    before = temporaries(Path(plan.directory))
    saver = Saver(plan)
    saver.kill(after)
    amid = bool(temporaries(Path(plan.directory)) - before)
    checkpointer = plan.open()
    newest = checkpointer.latest() or 0
    try:
        state, meta = checkpointer.restore()
        whole = is_whole(newest, plan.size, state, meta)
    except (TrainingError, UsageError) as error:
        print(f"after step {saver.handed}: {error}", file=sys.stderr)
        whole = False
    checkpointer.close()
    return Kill(amid, whole, saver.handed - newest)


def _seconds_per_save(plan: Plan) -> float:
    """Lets a saver save three times, so that there is something to lose; returns what the last one took."""
    saver = Saver(dataclasses.replace(plan, last=3))
    if saver.wait():
        raise SystemExit("the process that saves does not work: see above")
    return saver.seconds[-1] - saver.seconds[-2]
