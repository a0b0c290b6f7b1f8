"""Exporting the model while it trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.export.model_export import evaluated_weights
from everstep.export.serving import ExportModule, export
from everstep.loop.actions.export_files import ExportFileManager


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
        """Receives the loop of the model; `run_experiment` calls it. Without, the model is exported as it is."""
        self._trainer = controller.trainer or controller.evaluator

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Exports the model as it was evaluated."""
        name = self._files.next_name()
        with evaluated_weights(getattr(self._trainer, "optimizer", None)):
            export(self._module, self._signatures, name, timestamped=False, save_options=self._options)
        self._files.clean_up()

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: what was exported is on disk."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Has no state."""
