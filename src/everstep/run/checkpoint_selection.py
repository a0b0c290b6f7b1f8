"""Selects checkpoints of a run: `--checkpoint 200`, `best`, `last`, or several to average.

Reads none of them, and needs no backend.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import CHECKPOINTS, Damaged, Entry, Retention, complete_checkpoints, manifest, step_of
from everstep.config import load_file
from everstep.errors import UsageError
from everstep.run.layout_registry import loop_directories, loop_directory
from everstep.tracking import read_history

FLAG = "--checkpoint"
_FORMS = "a step, best, last, steps to average as in 100,200,300, or last:3 for the average of the newest three"
_STEP = re.compile(r"0|[1-9][0-9]{0,18}")
_NEWEST = re.compile(r"last(?::([1-9][0-9]{0,4}))?")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Selected checkpoints of a run.

    Attributes:
      paths: Their paths, in the order of their steps; several stand for their average.
      note: What is special about their weights: `the weights of epoch 2 (step 8), restored at the end`.
    """

    paths: tuple[Path, ...]
    note: str = ""

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return [step for path in self.paths if (step := step_of(path)) is not None]

    @property
    def name(self) -> str:
        """A name for files: `200`, `100+200+300`."""
        return "+".join(map(str, self.steps))

    @property
    def description(self) -> str:
        """Which weights they have, for people: `step 16: the weights of epoch 2 (step 8), restored at the end`."""
        return f"{self}: {self.note}" if self.note else str(self)

    def __str__(self) -> str:
        *others, newest = map(str, self.steps)
        return f"the average of steps {', '.join(others)} and {newest}" if others else f"step {newest}"


def choose(directory: Path, wanted: str, needs: str = "model") -> Chosen:
    """Returns the selected checkpoints.

    Args:
      directory: The run directory.
      wanted: The value of `--checkpoint`.
      needs: `model` if the model's weights are enough, which is all that the folder of the best weights has; `task` if
        the task's variables are needed: then the whole checkpoint of the best step is used, if it still exists.

    Raises:
      UsageError: The value is invalid, or there is no such checkpoint; lists the steps there are.
    """
    kept = complete_checkpoints(directory / CHECKPOINTS)
    if wanted == "best":
        return _best(directory, kept, needs)
    steps = selected_steps(wanted, list(kept), str(directory))
    restored = _restored_weights(directory)
    is_restored = restored is not None and steps == [restored.last]
    return Chosen(tuple(kept[step] for step in steps), restored.note if restored and is_restored else "")


def selected_steps(wanted: str, kept: Sequence[int], place: str) -> list[int]:
    """Returns the selected steps, in order; for `best`, all of them.

    Args:
      wanted: The value of `--checkpoint`.
      kept: The steps there are.
      place: The run, for messages.

    Raises:
      UsageError: The value is invalid, or there is no such step.
    """
    steps = sorted(kept)
    if wanted == "best":
        return steps
    if found := _NEWEST.fullmatch(wanted):
        count = int(found[1] or 1)
        if count > len(steps):
            raise UsageError(f"{place!r} has fewer checkpoints", key=FLAG, received=wanted, remedy=_existing(steps))
        return steps[-count:]
    selected = _numbers(wanted)
    if missing := [step for step in selected if step not in steps]:
        raise UsageError(f"{place!r} has no step {missing[0]}", key=FLAG, received=wanted, remedy=_existing(steps))
    return selected


def _existing(steps: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(steps)))
    return f"there are: {listed}" if listed else "there is none"


def _numbers(wanted: str) -> list[int]:
    words = wanted.split(",")
    if not all(_STEP.fullmatch(word) for word in words):
        raise UsageError(f"expected {_FORMS}", key=FLAG, received=wanted)
    if len(set(words)) < len(words):
        raise UsageError("a step counts once", key=FLAG, received=wanted, remedy="list each step once")
    return sorted(map(int, words))


def _best(directory: Path, kept: Mapping[int, Path], needs: str) -> Chosen:
    """Returns the exported best weights of a run, else the best of its checkpoints.

    By its own metric; without one, the weights that training has restored at its end, else by the validation loss.
    """
    exported = _exported_best(best_folder(directory))
    if exported is not None:
        return Chosen((kept.get(int(exported.name), exported) if needs == "task" else exported,))
    config = _trainer(directory)
    metric, mode = config.get("best_checkpoint_eval_metric"), config.get("best_checkpoint_metric_comp", "higher")
    rated = Retention(best=1, metric=str(metric), mode=mode).best_of(_entries(kept)) if metric else set()
    if rated:
        return Chosen((kept[rated.pop()],))
    restored = None if metric else _restored_weights(directory)
    if restored is not None and (step := next((at for at in (restored.step, restored.last) if at in kept), None)):
        return Chosen((kept[step],), restored.note)
    losses = {} if metric else _validation_losses(directory)
    if not losses:
        key = "trainer.best_checkpoint_eval_metric"
        why = (
            f"no checkpoint has a value of {key}" if metric else f"{key} was not set, and it logged no validation loss"
        )
        raise UsageError(
            f"the best step of {str(directory)!r} is unknown: {why}",
            key=FLAG,
            received="best",
            remedy=_existing(kept),
        )
    best = min(losses, key=lambda step: (losses[step], step))
    if best not in kept:
        raise UsageError(
            f"the lowest validation loss, {losses[best]:.4g}, was at step {best}, whose weights are not kept any more",
            key=FLAG,
            received="best",
            remedy=f"{_existing(kept)}; EarlyStopping(restore_best_weights=True) keeps the best",
        )
    return Chosen((kept[best],), f"the lowest validation loss, {losses[best]:.4g}")


@dataclasses.dataclass(frozen=True)
class _Restored:
    """Weights of an earlier step that training has restored when it ended.

    Attributes:
      step: The step that they are from.
      last: The last step, whose checkpoint has them.
      note: What is said of them.
    """

    step: int
    last: int
    note: str


def _restored_weights(directory: Path) -> _Restored | None:
    """Returns the weights that a run has restored at its end; None if it has the last ones, or is not known."""
    with contextlib.suppress(UsageError, TypeError, AttributeError, KeyError):
        record = storage.read_json(loop_directory(directory) / "run.json")
        step, last, epoch = record["final_weights"]["step"], record["step"], record["final_weights"].get("epoch")
        if isinstance(step, int) and step != last:
            of = f"step {step}" if epoch is None else f"epoch {epoch} (step {step})"
            return _Restored(step, last, f"the weights of {of}, restored at the end")
    return None


def _validation_losses(directory: Path) -> dict[int, float]:
    """Returns the validation loss of each step that was evaluated, without those that are not finite."""
    rows = read_history(loop_directory(directory) / "history.csv")[1]
    found: dict[int, float] = {}
    for step, cells in rows:
        with contextlib.suppress(ValueError):
            loss = float(cells.get("validation_loss", "nan"))
            found |= {step: loss} if math.isfinite(loss) else {}
    return found


def best_folder(directory: Path) -> Path:
    """Returns the folder in which a run exports its best weights, whether it does or not."""
    return directory / str(_trainer(directory).get("best_checkpoint_export_subdir") or "best")


def _exported_best(folder: Path) -> Path | None:
    with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
        path = folder / str(int(storage.read_json(folder / "info.json")["best_ckpt_global_step"]))
        return path if (path / manifest.NAME).is_file() else None
    return None


def _entries(kept: Mapping[int, Path]) -> Iterator[Entry]:
    for step, path in kept.items():
        with contextlib.suppress(Damaged, UsageError, OSError):  # a damaged one is not the best
            yield Entry(step, metrics=manifest.read(path).metrics)


def _trainer(directory: Path) -> Mapping[str, Any]:
    """Returns the trainer's section of a run's configuration; empty if it cannot be read."""
    for place in loop_directories(directory):
        with contextlib.suppress(UsageError):
            section = load_file(place / "config.yaml").get("trainer")
            if isinstance(section, Mapping):
                return section
    return {}
