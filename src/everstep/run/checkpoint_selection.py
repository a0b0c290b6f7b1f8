"""Which of a run's weights are meant: `--checkpoint 200`, `best`, `last`, or the average of several.

Found out without reading any of them, and without a backend.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.manifest import Damaged
from everstep.checkpoint.retention import Entry, Retention
from everstep.config import load_file
from everstep.errors import UsageError
from everstep.run.layouts import loop_directories

FLAG = "--checkpoint"
_FORMS = "a step, best, last, steps to average as in 100,200,300, or last:3 for the average of the newest three"
_STEP = re.compile(r"0|[1-9][0-9]{0,18}")
_NEWEST = re.compile(r"last(?::([1-9][0-9]{0,4}))?")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Checkpoints of a run.

    Attributes:
      paths: Where they are, by step; several stand for their average.
    """

    paths: tuple[Path, ...]

    @property
    def steps(self) -> list[int]:
        """Their steps, in order."""
        return [int(path.name) for path in self.paths]

    @property
    def name(self) -> str:
        """A name for files: `200`, `100+200+300`."""
        return "+".join(map(str, self.steps))

    def __str__(self) -> str:
        *others, newest = map(str, self.steps)
        return f"the average of steps {', '.join(others)} and {newest}" if others else f"step {newest}"


def choose(directory: Path, wanted: str, needs: str = "model") -> Chosen:
    """Returns the checkpoints that are meant.

    Args:
      directory: The run directory.
      wanted: What was asked for.
      needs: `model` where its weights are enough, which is all that is kept of the best; `task` where whatever else the
        task keeps is needed: then the best's whole checkpoint is taken, if it is still there.

    Raises:
      UsageError: It is nothing that can be meant, or not there; lists the steps that are.
    """
    kept = checkpoints(directory)
    if wanted == "best":
        return Chosen((_best(directory, kept, needs),))
    return Chosen(tuple(kept[step] for step in selected_steps(wanted, list(kept), str(directory))))


def selected_steps(wanted: str, kept: Sequence[int], place: str) -> list[int]:
    """Returns which of the steps that are kept are meant, in order; all of them where the best is to be found.

    Args:
      wanted: What was asked for.
      kept: The steps there are.
      place: Where they are, for messages.

    Raises:
      UsageError: It is nothing that can be meant, or not there.
    """
    steps = sorted(kept)
    if wanted == "best":
        return steps
    if found := _NEWEST.fullmatch(wanted):
        count = int(found[1] or 1)
        if count > len(steps):
            raise UsageError(f"{FLAG} {wanted}: {place!r} has not so many checkpoints; {_there(steps)}")
        return steps[-count:]
    asked = _numbers(wanted)
    if missing := [step for step in asked if step not in steps]:
        raise UsageError(f"{FLAG} {wanted}: {place!r} has no step {missing[0]}; {_there(steps)}")
    return asked


def _there(steps: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(steps)))
    return f"there are: {listed}" if listed else "there is none"


def _numbers(wanted: str) -> list[int]:
    words = wanted.split(",")
    if not all(_STEP.fullmatch(word) for word in words):
        raise UsageError(f"{FLAG}: received {wanted!r}, expected {_FORMS}")
    if len(set(words)) < len(words):
        raise UsageError(f"{FLAG}: received {wanted!r}: a step counts once; name each a single time")
    return sorted(map(int, words))


def checkpoints(directory: Path) -> dict[int, Path]:
    """Returns the complete checkpoints of a run by step."""
    folder = directory / "checkpoints"
    found = folder.glob(f"*/{manifest.NAME}") if folder.is_dir() else ()
    return {int(path.parent.name): path.parent for path in found if _STEP.fullmatch(path.parent.name)}


def _best(directory: Path, kept: Mapping[int, Path], needs: str) -> Path:
    """Returns the best weights that a run has put apart, else the best of its checkpoints by its own metric."""
    config = _trainer(directory)
    apart = _apart(directory / str(config.get("best_checkpoint_export_subdir") or "best"))
    if apart is not None:
        return kept.get(int(apart.name), apart) if needs == "task" else apart
    metric, mode = config.get("best_checkpoint_eval_metric"), config.get("best_checkpoint_metric_comp", "higher")
    rated = Retention(best=1, metric=str(metric), mode=mode).best_of(_entries(kept)) if metric else set()
    if not rated:
        raise UsageError(
            f"{FLAG} best: {str(directory)!r} does not say which step is the best: trainer.best_checkpoint_eval_metric "
            f"names the metric, before a run is trained; {_there(kept)}"
        )
    return kept[rated.pop()]


def _apart(folder: Path) -> Path | None:
    with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
        path = folder / str(int(storage.read_json(folder / "info.json")["best_ckpt_global_step"]))
        return path if (path / manifest.NAME).is_file() else None
    return None


def _entries(kept: Mapping[int, Path]) -> Iterator[Entry]:
    for step, path in kept.items():
        with contextlib.suppress(Damaged, UsageError, OSError):  # one that cannot be read is not the best
            yield Entry(step, metrics=manifest.read(path).metrics)


def _trainer(directory: Path) -> Mapping[str, Any]:
    """Returns the trainer's section of a run's configuration; empty where it cannot be read."""
    for place in loop_directories(directory):
        with contextlib.suppress(UsageError):
            section = load_file(place / "config.yaml").get("trainer")
            if isinstance(section, Mapping):
                return section
    return {}
