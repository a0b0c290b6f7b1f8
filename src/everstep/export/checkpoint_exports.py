"""A SavedModel for every checkpoint that a run keeps."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import Damaged, OrbaxCheckpointer, manifest
from everstep.errors import UsageError
from everstep.export.serving import ExportModule, export, read_origin


class CheckpointExports:
    """Keeps a SavedModel for each checkpoint: `directory/<step>`, which TensorFlow Serving reads as versions.

    Use it as an action of a run, or in a process of its own that follows one:

        exports = CheckpointExports(ExportModule(params, task.build_model()), ["serve"], "runs/x", "serving/x")
        everstep.run_experiment(…, model_dir="runs/x", train_actions=[exports])
        exports.update()

    Actions run before the checkpoint of their step is saved, so a step is exported by the next call. The module needs
    a model of its own, into which the weights of one checkpoint after the other are loaded.

    Args:
      module: The module to export, around another model than the one being trained.
      function_keys: Methods and their signatures, as for `export`.
      checkpoints: A run directory, or its `checkpoints`.
      directory: The folder for the SavedModels.
      samples: Batches to compare outputs on, as for `export`.
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
        """Updates the exports, as an action of a run; does nothing before the first checkpoint."""
        if self._checkpoints.is_dir():
            self.update()

    def update(self) -> list[Path]:
        """Exports new checkpoints, and removes the exports of deleted ones; returns the new paths.

        Only exports of the same run are ever removed or replaced.

        Raises:
          UsageError: The run does not exist, or something else in `directory` has the name of a step.
        """
        if not self._checkpoints.is_dir():
            raise UsageError("is not a directory", key="checkpoints", received=str(self._checkpoints))
        with contextlib.closing(OrbaxCheckpointer(self._checkpoints, repair=False)) as checkpointer:
            steps = checkpointer.steps()
        kept = {step: origin for step in steps if (origin := self._origin(step))}
        written = [path for step, origin in kept.items() if (path := self._export(step, origin))]
        runs = {origin["run"] for origin in kept.values()}
        for step, path in self._numbered().items():
            if step not in steps and (origin := read_origin(path)) and origin.get("run") in runs:
                storage.remove_directory(path)
        return written

    @property
    def latest(self) -> Path | None:
        """The SavedModel of the newest exported checkpoint, or None."""
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
          timeout: Seconds to wait for the next one; None to wait forever.
          interval: Seconds between two polls.
          done: Called when there is nothing new; returning True ends the iteration.
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
            return None  # the run has deleted it in the meantime
        return path

    def _origin(self, step: int) -> dict[str, Any] | None:
        """Returns the origin to record with a checkpoint's export; None if the checkpoint was deleted meanwhile."""
        checkpoint = self._checkpoints / str(step)
        try:
            record = manifest.read(checkpoint)
        except Damaged as damage:
            if checkpoint.exists():
                raise UsageError(f"is damaged: {damage}", key="checkpoints", received=str(checkpoint)) from damage
            return None
        return {"run": record.run, "step": step, "saved": record.saved}

    def _numbered(self) -> dict[int, Path]:
        """Returns all numbered versions in the directory, oldest first, including those of other programs."""
        entries = self._directory.iterdir() if self._directory.is_dir() else ()
        numbered = {int(path.name): path for path in entries if re.fullmatch("[0-9]+", path.name)}
        return dict(sorted(numbered.items()))
