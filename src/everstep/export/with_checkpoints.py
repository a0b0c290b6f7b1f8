"""A SavedModel for every checkpoint that a run keeps."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import UsageError
from everstep.export.exporting import export
from everstep.export.module import ExportModule


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
        """Brings the exports up to date; an action."""
        self.update()

    def update(self) -> list[Path]:
        """Exports the checkpoints that are new, removes what is exported of those that are gone; returns the new."""
        kept = self._kept()
        new = [self._directory / str(step) for step in kept if step not in self._steps()]
        written = [path for path in new if self._export(path)]
        for step in self._steps():
            if step not in kept:
                storage.remove_directory(self._directory / str(step))
        return written

    @property
    def latest(self) -> Path | None:
        """The SavedModel of the newest checkpoint that is exported, or None."""
        return max((self._directory / str(step) for step in self._steps()), key=lambda p: int(p.name), default=None)

    def follow(
        self,
        timeout: float | None = None,
        interval: float = 1.0,
        done: Callable[[], bool] = lambda: False,
    ) -> Iterator[Path]:
        """Yields each new SavedModel of `directory`, whoever exports it, oldest first.

        Args:
          timeout: Seconds to wait for the next one; None for ever.
          interval: Seconds between two looks.
          done: Asked when there is nothing new; True ends it.
        """
        seen: set[int] = set()
        last = time.monotonic()
        while True:
            new = [step for step in self._steps() if step not in seen]
            for step in new:
                seen.add(step)
                yield self._directory / str(step)
                last = time.monotonic()
            if not new and (done() or (timeout is not None and time.monotonic() - last >= timeout)):
                return
            if not new:
                time.sleep(interval)

    def _export(self, path: Path) -> bool:
        checkpoint = self._checkpoints / path.name
        try:
            export(self._module, self._keys, path, checkpoint, timestamped=False, samples=self._samples)
        except UsageError:
            if checkpoint.exists():
                raise
            return False  # removed meanwhile by the run that wrote it
        return True

    def _kept(self) -> list[int]:
        with contextlib.closing(OrbaxCheckpointer(self._checkpoints, repair=False)) as checkpointer:
            return checkpointer.steps()

    def _steps(self) -> list[int]:
        """Returns the steps that are exported."""
        names = [entry.name for entry in self._directory.iterdir()] if self._directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdigit())
