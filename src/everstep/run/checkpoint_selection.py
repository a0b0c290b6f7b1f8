"""Selects checkpoints of a run: `--checkpoint 200`, `best`, `last`, or several to average.

Reads none of them, and needs no backend.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import CHECKPOINTS, Damaged, Entry, Retention, complete_checkpoints, manifest, step_of
from everstep.config import load_file
from everstep.errors import UsageError
from everstep.run.layout_registry import loop_directories

FLAG = "--checkpoint"
_FORMS = "a step, best, last, steps to average as in 100,200,300, or last:3 for the average of the newest three"
_STEP = re.compile(r"0|[1-9][0-9]{0,18}")
_NEWEST = re.compile(r"last(?::([1-9][0-9]{0,4}))?")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Selected checkpoints of a run.

    Attributes:
      paths: Their paths, in the order of their steps; several stand for their average.
    """

    paths: tuple[Path, ...]

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return [step for path in self.paths if (step := step_of(path)) is not None]

    @property
    def name(self) -> str:
        """A name for files: `200`, `100+200+300`."""
        return "+".join(map(str, self.steps))

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
        return Chosen((_best(directory, kept, needs),))
    return Chosen(tuple(kept[step] for step in selected_steps(wanted, list(kept), str(directory))))


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


def _best(directory: Path, kept: Mapping[int, Path], needs: str) -> Path:
    """Returns the exported best weights of a run, else the best of its checkpoints by its own metric."""
    config = _trainer(directory)
    exported = _exported_best(best_folder(directory))
    if exported is not None:
        return kept.get(int(exported.name), exported) if needs == "task" else exported
    metric, mode = config.get("best_checkpoint_eval_metric"), config.get("best_checkpoint_metric_comp", "higher")
    rated = Retention(best=1, metric=str(metric), mode=mode).best_of(_entries(kept)) if metric else set()
    if not rated:
        raise UsageError(
            f"the best step of {str(directory)!r} is unknown: trainer.best_checkpoint_eval_metric was not set",
            key=FLAG,
            received="best",
            remedy=_existing(kept),
        )
    return kept[rated.pop()]


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
