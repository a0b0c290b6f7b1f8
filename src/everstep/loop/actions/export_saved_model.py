"""SavedModels of the model while it trains: `model-0`, `model-1`, … of which the newest are kept."""

import contextlib
import glob
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.errors import UsageError
from everstep.export import ExportModule, evaluated_weights, export


class ExportFileManager:
    """Names a series of exports, and removes the oldest.

        files = ExportFileManager("runs/demo/served/model", max_to_keep=2)
        files.next_name()   # runs/demo/served/model-0, and model-1 the next time, also after a restart

    A resumed run repeats the exports since its last checkpoint. With `next_id_fn=lambda: trainer.global_step` it writes
    them under the same names again; by default the numbers continue.

    Args:
      base_name: The folder and the prefix of the names.
      max_to_keep: How many exports with the highest numbers to keep; a negative number keeps all.
      next_id_fn: Returns the number of the next name; by default one more than the highest so far.
      subdirectory: A folder inside each name, which `next_name` includes. Only this folder is removed; files beside it
        are kept.

    Raises:
      UsageError: `max_to_keep` is 0: every export would be removed at once.
    """

    def __init__(
        self,
        base_name: storage.PathLike,
        max_to_keep: int = 5,
        next_id_fn: Callable[[], Any] | None = None,
        subdirectory: str | None = None,
    ) -> None:
        if max_to_keep == 0:
            raise UsageError("keeps nothing", key="max_to_keep", received=0, remedy="at least 1, or -1 to keep all")
        self._base, self._max_to_keep = Path(base_name), max_to_keep
        self._next_id, self._subdirectory = next_id_fn or self._count, subdirectory or ""
        self._next = 0

    @property
    def managed_files(self) -> list[str]:
        """The names that exist, the lowest number first."""
        return [str(path / self._subdirectory) for _, path in self._folders()]

    def next_name(self) -> str:
        """Returns the name for the next export; its folder exists."""
        self._base.parent.mkdir(parents=True, exist_ok=True)
        return str(self._base.with_name(f"{self._base.name}-{int(self._next_id())}") / self._subdirectory)

    def clean_up(self) -> None:
        """Removes the exports with the lowest numbers, and incomplete ones of killed processes."""
        if self._max_to_keep > 0:
            for _, path in self._folders()[: -self._max_to_keep]:
                _remove(path / self._subdirectory)
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
        for path in self._base.parent.glob(f".everstep-*-{glob.escape(self._base.name)}-*"):
            _remove(path)

    def _count(self) -> int:
        number = max([self._next, *(number + 1 for number, _ in self._folders())])
        self._next = number + 1
        return number

    def _folders(self) -> list[tuple[int, Path]]:
        name = re.compile(rf"{re.escape(self._base.name)}-([0-9]+)")
        entries = self._base.parent.iterdir() if self._base.parent.is_dir() else ()
        numbered = [(int(match[1]), path) for path in entries if (match := name.fullmatch(path.name))]
        return sorted((number, path) for number, path in numbered if (path / self._subdirectory).exists())


class ExportSavedModel:
    """Writes a SavedModel at each call; it is loaded and compared before it gets its name.

    If the optimizer of the run averages weights, the averages are exported, because they were evaluated.

    Args:
      model: The trained model, or an `ExportModule` of it, with preprocessing and postprocessing.
      file_manager: Names the exports, and removes old ones.
      signatures: The names of the module's methods with those of their signatures; by default
        `{"serve": "serving_default"}`.
      options: A `tf.saved_model.SaveOptions`.
    """

    def __init__(
        self,
        model: keras.Model | ExportModule,
        file_manager: ExportFileManager,
        signatures: Sequence[str] | Mapping[str, str] | None = None,
        options: Any = None,
    ) -> None:
        self._module = model if isinstance(model, ExportModule) else ExportModule(None, model)
        self._files, self._signatures, self._options = file_manager, signatures or ["serve"], options
        self._trainer: Any = None

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop; without it the model is exported as it is, without averages."""
        self._trainer = controller.trainer or controller.evaluator

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Exports the model as it was evaluated."""
        name = self._files.next_name()
        whole = getattr(self._trainer, "whole_model", contextlib.nullcontext)
        with whole(), evaluated_weights(getattr(self._trainer, "optimizer", None)):
            export(self._module, self._signatures, name, timestamped=False, save_options=self._options)
        self._files.clean_up()

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: the exports are on disk."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Has no state."""


def _remove(path: Path) -> None:
    if path.is_dir():
        storage.remove_directory(path)
    else:
        path.unlink(missing_ok=True)
