"""`GenericTrainer`: estimators with the interface of scikit-learn, which train themselves.

They are stored with skops, which loads no foreign code; with joblib where a project's `pyproject.toml` allows pickle.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.config import allows_pickle
from everstep.errors import TrainingError, UsageError, kind_of, missing_extra
from everstep.projects.components.base_classes import GenericModelBuilderBase
from everstep.projects.components.building import Components
from everstep.projects.components.data_splits import DataSplit
from everstep.projects.components.export import write_export
from everstep.projects.components.run_folder import RunFolder

SKOPS, JOBLIB = "model.skops", "model.joblib"


class GenericTrainer:
    """Fits the estimator of a `GenericModelBuilderBase`, and exports it.

    An estimator has no epochs that could be saved in between: a run that was killed fits it again.

    Args:
      components: The project's components.
      folder: The run's folder.
    """

    def __init__(self, components: Components, folder: RunFolder) -> None:
        self.__components, self.__folder = components, folder

    def train(self, train: DataSplit, validation: DataSplit) -> Any:
        """Returns the fitted estimator.

        Raises:
          UsageError: The builder fails.
          TrainingError: It returns no estimator.
        """
        builder = self.__components.model_builder
        if not isinstance(builder, GenericModelBuilderBase):
            raise UsageError(
                "GenericTrainer trains a GenericModelBuilderBase", key="model_builder", received=type(builder).__name__
            )
        with self.__components.calling("model_builder", "fit"):
            estimator = builder.fit(endless(train), train.n_iter, endless(validation), validation.n_iter)
        if not callable(getattr(estimator, "predict", None)):
            name = self.__components.config.model_builder_class
            raise TrainingError(
                f"{name}.fit() returned {kind_of(estimator)}, which has no predict(x)", key="model_builder_class"
            )
        return estimator

    def export(self, estimator: Any) -> None:
        """Writes the estimator to `exported/`, loaded again before it replaces an older one.

        Raises:
          TrainingError: It cannot be saved safely, and the project does not allow pickle.
        """

        def write(directory: Path) -> dict[str, Any]:
            return {"estimator": save_estimator(estimator, directory, self.__components.project.root)}

        write_export(self.__folder, self.__components.config, write)

    def load(self) -> Any:
        """Returns the exported estimator."""
        return load_estimator(self.__folder.exported, self.__components.project.root)


def endless(split: DataSplit, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
    """Yields the batches of a split, pass after pass; the first `limit` ones of each, where that is given."""
    while True:
        for number, batch in enumerate(split.batches()):
            if number == limit:
                break
            yield batch


def save_estimator(estimator: Any, folder: Path, root: Path) -> str:
    """Writes an estimator, and loads it again; returns the name of the file.

    Args:
      estimator: The estimator.
      folder: Where to write.
      root: The project, whose `pyproject.toml` may allow pickle.

    Raises:
      TrainingError: Skops does not support it, and the project does not allow pickle.
    """
    if allows_pickle(root):
        _module("joblib").dump(estimator, folder / JOBLIB)
        return JOBLIB
    skops = _module("skops.io")
    reason, cause = "", None
    try:
        skops.dump(estimator, folder / SKOPS)
    except Exception as error:  # whatever it finds inside
        reason, cause = f"{type(error).__name__}: {error}", error
    if not reason and (unknown := skops.get_untrusted_types(file=folder / SKOPS)):
        reason = f"it contains {', '.join(unknown)}"
    if reason:
        raise TrainingError(
            f"{type(estimator).__name__} cannot be saved with skops: {reason}",
            remedy=f"for joblib, {_permission(root)}",
        ) from cause
    skops.load(folder / SKOPS)
    return SKOPS


def load_estimator(path: str | Path, root: Path) -> Any:
    """Returns the estimator in a file, or in a folder that contains one.

    Raises:
      UsageError: It does not exist, or loading it could run any code and the project does not allow that.
    """
    file = next((p for p in (Path(path), Path(path) / SKOPS, Path(path) / JOBLIB) if p.is_file()), None)
    if file is None:
        raise UsageError("contains no estimator", key="path", received=str(path), remedy="train the run first")
    if file.suffix == ".skops":
        return _module("skops.io").load(file)
    if not allows_pickle(root):
        raise UsageError(
            "can run any code when it is loaded",
            key="path",
            received=str(file),
            remedy=f"if you trust it, {_permission(root)}",
        )
    return _module("joblib").load(file)


def _module(name: str) -> Any:
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise missing_extra(package, "sklearn", "saving an estimator")
    return importlib.import_module(name)


def _permission(root: Path) -> str:
    return f"set [tool.everstep] allow-pickle = true in {root / 'pyproject.toml'}"
