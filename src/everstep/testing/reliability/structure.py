"""Programs that have changed between saving and restoring: refused, with every difference named, and nothing taken.

For each of the changes of `structural_changes.py` a trainer trains and is saved, and a trainer of the changed program
restores that. The bars: one error that names every difference and no other, the state in memory as it was before, bit
by bit; and, where nothing in the structure has changed, all of the state restored.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import ExperimentConfig, Trainer
from everstep.checkpoint import OrbaxCheckpointer
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.testing.reliability.structural_changes import CHANGES, SAME, Change, Parts, inputs_for
from everstep.types import State

EVALUATED = ("model/", "task.")


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of all changes.

    Attributes:
      changes: How many there were.
      differences: How many differences they made in all.
      silent: Changes that were not refused.
      incomplete: Those whose error does not name every difference, and nothing else.
      altered: Those that were refused, but left another state in memory.
      lost: Where nothing had changed, and yet not all came back.
    """

    changes: int
    differences: int
    silent: list[str]
    incomplete: list[str]
    altered: list[str]
    lost: list[str]

    def passed(self) -> bool:
        """Returns whether all bars were met."""
        return not (self.silent or self.incomplete or self.altered or self.lost)

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"{keras.backend.backend():10s} structural changes {self.changes}, differences {self.differences} | silent "
            f"restores {len(self.silent)}, incomplete errors {len(self.incomplete)}, state in memory altered "
            f"{len(self.altered)} | unchanged structures not restored {len(self.lost)} | "
            f"{'passed' if self.passed() else 'NOT PASSED'}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a restore has done: its error, and the states of checkpoint and memory."""

    saved: State
    before: State
    after: State
    error: str
    moved: bool


def measure(folder: Path, changes: Sequence[Change] = CHANGES, same: Sequence[Change] = SAME) -> Figures:
    """Saves before and restores after each change."""
    outcomes = {change.name: restore(change, folder / str(n)) for n, change in enumerate(changes)}
    named = {change.name: change for change in changes}
    expected = {name: differences(outcome, named[name].evaluates) for name, outcome in outcomes.items()}
    refused = {name: outcome for name, outcome in outcomes.items() if outcome.error}
    return Figures(
        len(changes),
        sum(map(len, expected.values())),
        [f"{name}: not refused" for name in outcomes if name not in refused],
        [f"{name}: {outcome.error}" for name, outcome in refused.items() if named_in(outcome) != expected[name]],
        [f"{name}: altered" for name, o in refused.items() if o.moved or not _equal(o.before, o.after)],
        [f"{change.name}: not restored" for change in same if not _came_back(change, folder / "same" / change.name)],
    )


def restore(change: Change, folder: Path) -> Outcome:
    """Trains and saves as it was before, restores as it is after."""
    checkpointer = OrbaxCheckpointer(folder, run="structure")
    trained = trainer(change.before)
    trained.train(2)
    checkpointer.save(2, *trained.state())
    trained.close()
    state, meta = checkpointer.restore()
    changed = trainer(change.after, train=not change.evaluates)
    before, place = in_memory(changed), _place(changed)
    error = _refusal(changed, state, meta)
    after, moved = in_memory(changed), _place(changed) != place
    changed.close()
    checkpointer.close()
    return Outcome(state, before, after, error, moved)


def trainer(parts: Parts, train: bool = True) -> Trainer:
    """Returns a trainer of an experiment, in whose state something has its beginning."""
    backend.prepare(7)
    model = parts.model()
    params = ExperimentConfig()
    params.override({"task": {name: {"global_batch_size": 4} for name in ("train_data", "validation_data")}})
    data = inputs_for(model)
    optimizer = parts.optimizer() if train else None
    return Trainer(params, parts.task(), model, optimizer, train, not train, data, data)


def in_memory(trainer: Trainer) -> State:
    """Returns the state as the engine has it, and as the Keras objects show it."""
    shown = {
        f"shown {v.path} {number}": keras.ops.convert_to_numpy(v) for number, v in enumerate(trainer.model.variables)
    }
    return trainer.engine.state() | shown


def differences(outcome: Outcome, evaluates: bool) -> set[str]:
    """Returns what an error must name, found by comparing the two states."""
    now = {key: value for key, value in outcome.before.items() if not key.startswith("shown ")}
    saved = outcome.saved
    if evaluates:  # whose optimizer and training metrics are not its business
        now, saved = ({k: v for k, v in state.items() if k.startswith(EVALUATED)} for state in (now, saved))
    missing = {f"missing: {key}" for key in now.keys() - saved.keys()}
    unexpected = {f"unexpected: {key}" for key in saved.keys() - now.keys()}
    return missing | unexpected | set(_unequal(now, saved))


def _unequal(now: State, saved: State) -> Iterator[str]:
    for key in now.keys() & saved.keys():
        if now[key].shape != saved[key].shape:
            yield f"shape of {key}"
        elif now[key].dtype != saved[key].dtype:
            yield f"dtype of {key}"


def named_in(outcome: Outcome) -> set[str]:
    """Returns what an error names: one difference per line, and their number in the first."""
    first, *lines = outcome.error.splitlines()
    named = {
        line.strip() if line.strip().startswith(("missing", "unexpected")) else line.strip().partition(":")[0]
        for line in lines
    }
    return named if f"({len(lines)} differences)" in first else set()


def _refusal(changed: Trainer, state: State, meta: dict[str, Any]) -> str:
    try:
        changed.restore(state, meta)
    except UsageError as error:
        return str(error)
    return ""


def _came_back(change: Change, folder: Path) -> bool:
    outcome = restore(change, folder)
    kept = {k: v for k, v in outcome.saved.items() if not change.evaluates or k.startswith(EVALUATED)}
    return not outcome.error and _equal(kept, {k: v for k, v in outcome.after.items() if k in kept})


def _place(trainer: Trainer) -> tuple[int, Any]:
    return trainer.global_step, trainer.state()[1]


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(one[key].tobytes() == other[key].tobytes() for key in one)
