"""Exporting the model while it trains."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.actions.export_files import ExportFileManager
from everstep.export.exporting import export
from everstep.export.module import ExportModule
from everstep.optim.ema import find_average


class ExportSavedModel:
    """Writes a SavedModel each time it is called; loaded back and compared before it has its name.

    Where the optimizer of the run averages weights, the averaged ones are exported: they are what was evaluated.

    Args:
      model: The model that is trained; or an `ExportModule` of it, with what belongs before and behind it.
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
        """Tells it whose model it is; `run_experiment` does. Without, the model is exported as it is."""
        self._trainer = controller.trainer or controller.evaluator

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Exports the model as it was evaluated."""
        name = self._files.next_name()
        with self._as_evaluated():
            export(self._module, self._signatures, name, timestamped=False, save_options=self._options)
        self._files.clean_up()

    @contextlib.contextmanager
    def _as_evaluated(self) -> Iterator[None]:
        """Inside the block the Keras objects have the averaged weights, where there are such."""
        if find_average(getattr(self._trainer, "optimizer", None)) is None:
            yield
            return
        engine = self._trainer.engine
        engine.pull()  # what an action before this one has changed stays changed
        try:
            with self._trainer.averaged():
                engine.push()
                yield
        finally:
            engine.push()

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: what was exported is on disk."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Has nothing to go on from."""
