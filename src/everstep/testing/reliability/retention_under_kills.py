"""1,000 saves with 50 kills: which checkpoints exist, and what else is in the directory.

The rule keeps the newest 3, the best 3 and one every 100 steps; scores have ties and are sometimes not a number. After
each kill, the steps on disk must be those of the rule, but for the save under way; each of them must load, whole; and
what others have put into the directory must be as it was.
"""

import dataclasses
import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everstep.checkpoint import Entry, OrbaxCheckpointer, Retention
from everstep.errors import TrainingError, UsageError
from everstep.testing.reliability.saver import Plan, Saver, is_whole, metrics_of

RULE: dict[str, Any] = {"newest": 3, "best": 3, "metric": "score", "mode": "higher", "every_steps": 100}
SIZE = 4000
FOREIGN_STEP = 7
FIRST = FOREIGN_STEP + 1


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was found over all kills.

    Attributes:
      saves: Checkpoints committed.
      kills: How often the process was killed.
      kept: Checkpoints on disk in the end.
      wrong: What was not as the rule, or as it had been; one line each.
    """

    saves: int
    kills: int
    kept: int
    wrong: list[str]

    def passed(self) -> bool:
        """Returns whether nothing was wrong."""
        return not self.wrong

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"saves {self.saves}, kills {self.kills}, kept in the end {self.kept} | differences from the rule, "
            f"checkpoints that do not load, and changes to what others put there: {len(self.wrong)} | "
            f"{'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, saves: int, kills: int, seed: int = 0) -> Figures:
    """Saves that often, in processes of which so many are killed."""
    directory = folder / "checkpoints"
    put_foreign_things(directory)
    foreign = fingerprints(directory)
    choice = random.Random(seed)
    wrong: list[str] = []
    before: set[int] = set()
    for last in targets(saves, kills):
        plan = Plan(str(directory), SIZE, last + 1000, RULE)
        before = _kill_beyond(plan, last, choice, before, wrong)
        wrong += _changed(directory, foreign)
    committed = _finish(Plan(str(directory), SIZE, FIRST + saves - 1, RULE), wrong)
    wrong += _changed(directory, foreign)
    return Figures(len(committed), kills, len(own_steps(directory)), wrong)


def targets(saves: int, kills: int) -> list[int]:
    """Returns the steps at about which the process is killed, evenly spread."""
    return [FIRST + saves * number // (kills + 1) for number in range(1, kills + 1)]


def put_foreign_things(directory: Path) -> None:
    """Puts into the directory what a user might: another run's checkpoint, copies, notes, a half-copied one."""
    other = OrbaxCheckpointer(directory, run="other")
    other.save(FOREIGN_STEP, {"model/0": np.arange(10.0)}, {"step": FOREIGN_STEP})
    other.close()
    for name in ("7-copy", "7.orbax-checkpoint-tmp-12", "best"):
        shutil.copytree(directory / str(FOREIGN_STEP), directory / name)
    (directory / "half").mkdir()
    shutil.copy(directory / str(FOREIGN_STEP) / "manifest.json", directory / "half")
    (directory / "note.txt").write_text("do not delete")
    (directory / ".hidden").write_text("nor this")
    (directory / "007").mkdir()


def fingerprints(directory: Path) -> dict[str, str]:
    """Returns a digest of every file below the directory, and every folder."""
    paths = sorted(directory.rglob("*"))
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
        for path in paths
    }


def own_steps(directory: Path) -> set[int]:
    """Returns the steps of the run's own checkpoints on disk."""
    names = (path.name for path in directory.iterdir())
    return {int(name) for name in names if name.isdecimal() and str(int(name)) == name} - {FOREIGN_STEP}


def kept_of(committed: range) -> set[int]:
    """Returns what the rule leaves of all that was ever committed."""
    return Retention(**RULE).kept(Entry(step, metrics=metrics_of(step)) for step in committed)


def _kill_beyond(plan: Plan, step: int, choice: random.Random, before: set[int], wrong: list[str]) -> set[int]:
    """Kills a saver at a random instant after it has handed over `step`; returns what is on disk then."""
    saver = Saver(plan)
    saver.read_until(step)
    saver.kill(choice.uniform(0, 0.2))
    present = own_steps(Path(plan.directory))
    wrong += differences(present, before, saver.handed)
    wrong += _unloadable(plan, present)
    return present


def differences(present: set[int], before: set[int], handed: int) -> Iterator[str]:
    """Yields violations of the rule, except for the save in progress.

    Args:
      present: The steps on disk.
      before: Those at the kill before.
      handed: The last step that was handed over.
    """
    newest = max(present, default=0)
    if newest < handed - 1:
        yield f"step {handed - 1} was committed, but the newest is {newest}"
    committed = range(FIRST, newest + 1)
    if missing := kept_of(committed) - present:
        yield f"at step {newest}, {sorted(missing)} should be there"
    # Old ones are removed as the last act of a save: the last one may not have come to it.
    started_at = max(before, default=0)
    allowed = before | {newest} if newest <= started_at + 1 else kept_of(range(FIRST, newest)) | {newest}
    if extra := present - kept_of(committed) - allowed:
        yield f"at step {newest}, {sorted(extra)} should be removed"


def _finish(plan: Plan, wrong: list[str]) -> range:
    """Lets a saver come to its end; then the rule must hold to the letter."""
    code = Saver(plan).wait()
    present = own_steps(Path(plan.directory))
    committed = range(FIRST, plan.last + 1)
    if code or present != kept_of(committed):
        wrong.append(f"in the end (exit code {code}): {sorted(present)}, not {sorted(kept_of(committed))}")
    wrong += _unloadable(plan, present)
    return committed


def _unloadable(plan: Plan, present: set[int]) -> Iterator[str]:
    checkpointer = plan.open()
    for step in [*sorted(present), None]:
        try:
            state, meta = checkpointer.restore(step)
            if not is_whole(max(present) if step is None else step, plan.size, state, meta):
                yield f"the checkpoint of step {step or 'the newest'} is not what was saved"
        except (TrainingError, UsageError) as error:
            yield str(error)
    checkpointer.close()


def _changed(directory: Path, foreign: dict[str, str]) -> Iterator[str]:
    now = fingerprints(directory)
    yield from (f"{name} was changed or removed" for name in foreign if now.get(name) != foreign[name])
