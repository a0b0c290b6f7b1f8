"""`GenericTrainer`: for estimators in the manner of scikit-learn, which train themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.components.building import Components
from everstep.components.estimator_file import load_estimator, save_estimator
from everstep.components.exporting import write_export
from everstep.components.flows import Flow
from everstep.components.model_builder import GenericModelBuilderBase
from everstep.components.run_folder import RunFolder
from everstep.errors import TrainingError, UsageError, kind_of


class GenericTrainer:
    """Has a `GenericModelBuilderBase` fit its estimator, and exports it.

    An estimator has no epochs that could be saved in between: a run that was killed fits it anew.

    Args:
      components: The project's.
      folder: The run's folder.
    """

    def __init__(self, components: Components, folder: RunFolder) -> None:
        self._components, self._folder = components, folder

    def train(self, train: Flow, validation: Flow) -> Any:
        """Returns the fitted estimator.

        Raises:
          UsageError: The builder fails.
          TrainingError: What it returns is no estimator.
        """
        builder = self._components.model_builder
        if not isinstance(builder, GenericModelBuilderBase):
            raise UsageError(f"GenericTrainer trains a GenericModelBuilderBase, received {type(builder).__name__}")
        with self._components.calling("model_builder", "fit"):
            estimator = builder.fit(_endless(train), train.n_iter, _endless(validation), validation.n_iter)
        if not callable(getattr(estimator, "predict", None)):
            name = self._components.config.model_builder_class
            raise TrainingError(f"{name}.fit() returned {kind_of(estimator)}, which has no predict(x)")
        return estimator

    def export(self, estimator: Any) -> None:
        """Writes the estimator to `exported/`, loaded back before it takes the place.

        Raises:
          TrainingError: It cannot be saved safely, and the project does not allow pickle.
        """

        def write(directory: Path) -> dict[str, Any]:
            return {"estimator": save_estimator(estimator, directory, self._components.project.root)}

        write_export(self._folder, self._components.config, write)

    def load(self) -> Any:
        """Returns the exported estimator."""
        return load_estimator(self._folder.exported, self._components.project.root)


def _endless(flow: Flow) -> Iterator[tuple[Any, ...]]:
    while True:
        yield from flow.batches()
