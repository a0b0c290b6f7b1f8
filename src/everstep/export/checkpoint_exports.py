"""A SavedModel for every checkpoint that a run keeps."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.manifest import Damaged
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import UsageError
from everstep.export.serving import ExportModule, export, read_origin


class CheckpointExports:
    """Keeps a SavedModel beside each checkpoint: `directory/<step>`, which TensorFlow Serving takes for versions.

    As an action of a run, or in a process of its own that follows one:

        exports = CheckpointExports(ExportModule(params, task.build_model()), ["serve"], "runs/x", "serving/x")
        everstep.run_experiment(…, model_dir="runs/x", train_actions=[exports])
        exports.update()

    Actions come before the checkpoint of their step, so a step is exported with the next call. The module needs a
    model of its own: it is given the weights of one checkpoint after the other.

    Args:
      module: What to export, around another model than the one that is trained.
      function_keys: As `export` takes them.
      checkpoints: A run directory, or its `checkpoints`.
      directory: Where the SavedModels go.
      samples: As `export` takes them.
    """

    def __init__(
        self,
        module: ExportModule,
        function_keys: Sequence[str] | Mapping[str, str],
        checkpoints: storage.PathLike,
        directory: storage.PathLike,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        self._module, self._keys, self._samples = module, function_keys, samples
        place = Path(checkpoints)
        self._checkpoints = place if place.name == "checkpoints" else place / "checkpoints"
        self._directory = Path(directory)

    def __call__(self, logs: Mapping[str, Any]) -> None:
        """Brings the exports up to date; an action. A run's first one comes before its first checkpoint."""
        if self._checkpoints.is_dir():
            self.update()

    def update(self) -> list[Path]:
        """Exports the checkpoints that are new, and removes the exports of those that are gone; returns the new.

        Only what was exported from the same run is ever removed or replaced.

        Raises:
          UsageError: There is no such run, or something else has the name of a step in `directory`.
        """
        if not self._checkpoints.is_dir():
            raise UsageError("is not a directory", key="checkpoints", received=str(self._checkpoints))
        steps = self._steps()
        kept = {step: origin for step in steps if (origin := self._origin(step))}
        written = [path for step, origin in kept.items() if (path := self._export(step, origin))]
        runs = {origin["run"] for origin in kept.values()}
        for step, path in self._numbered().items():
            if step not in steps and (origin := read_origin(path)) and origin.get("run") in runs:
                storage.remove_directory(path)
        return written

    @property
    def latest(self) -> Path | None:
        """The SavedModel of the newest checkpoint that is exported, or None."""
        exported = [path for path in self._numbered().values() if read_origin(path)]
        return exported[-1] if exported else None

    def follow(
        self,
        timeout: float | None = None,
        interval: float = 1.0,
        done: Callable[[], bool] = lambda: False,
    ) -> Iterator[Path]:
        """Yields each new SavedModel in `directory`, whichever process exports it, oldest first.

        Args:
          timeout: Seconds to wait for the next one; None for ever.
          interval: Seconds between two polls.
          done: Called when there is nothing new; True ends the iteration.
        """
        seen: set[int] = set()
        last = time.monotonic()
        while True:
            new = {step: path for step, path in self._numbered().items() if step not in seen}
            for step, path in new.items():
                seen.add(step)
                yield path
                last = time.monotonic()
            if not new and (done() or (timeout is not None and time.monotonic() - last >= timeout)):
                return
            if not new:
                time.sleep(interval)

    def _export(self, step: int, origin: Mapping[str, Any]) -> Path | None:
        """Exports a checkpoint; returns the path, or None if it was exported before."""
        path, checkpoint = self._directory / str(step), self._checkpoints / str(step)
        if path.exists():
            former = read_origin(path)
            if former == origin:
                return None
            if former is None or former.get("run") != origin["run"]:
                raise UsageError(
                    "is not an export of this run", key="directory", received=str(path), remedy="use another directory"
                )
        try:
            export(self._module, self._keys, path, checkpoint, timestamped=False, samples=self._samples, origin=origin)
        except UsageError:
            if checkpoint.exists():
                raise
            return None  # removed meanwhile by the run that wrote it
        return path

    def _steps(self) -> list[int]:
        with contextlib.closing(OrbaxCheckpointer(self._checkpoints, repair=False)) as checkpointer:
            return checkpointer.steps()

    def _origin(self, step: int) -> dict[str, Any] | None:
        """Returns the origin that the export of a checkpoint records; None if the checkpoint was removed meanwhile."""
        checkpoint = self._checkpoints / str(step)
        try:
            record = manifest.read(checkpoint)
        except Damaged as damage:
            if checkpoint.exists():
                raise UsageError(f"is damaged: {damage}", key="checkpoints", received=str(checkpoint)) from damage
            return None
        return {"run": record.run, "step": step, "saved": record.saved}

    def _numbered(self) -> dict[int, Path]:
        """Returns the versions in the directory by their numbers, oldest first, whatever wrote them."""
        entries = self._directory.iterdir() if self._directory.is_dir() else ()
        numbered = {int(path.name): path for path in entries if re.fullmatch("[0-9]+", path.name)}
        return dict(sorted(numbered.items()))
