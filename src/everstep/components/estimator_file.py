"""An estimator on disk: skops, which loads only what is known to be harmless; joblib where a project allows it."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from everstep.config.project import allows_pickle
from everstep.errors import TrainingError, UsageError, missing_extra

SKOPS, JOBLIB = "model.skops", "model.joblib"


def save_estimator(estimator: Any, folder: Path, root: Path) -> str:
    """Writes an estimator that is known to load again; returns the name of the file.

    Args:
      estimator: It.
      folder: Where to write.
      root: The project, whose `pyproject.toml` may allow pickle.

    Raises:
      TrainingError: Skops does not take it, and the project does not allow pickle.
    """
    if allows_pickle(root):
        _module("joblib").dump(estimator, folder / JOBLIB)
        return JOBLIB
    skops = _module("skops.io")
    try:
        skops.dump(estimator, folder / SKOPS)
    except Exception as error:  # whatever it finds inside
        raise TrainingError(_refusal(estimator, f"{type(error).__name__}: {error}", root)) from error
    unknown = skops.get_untrusted_types(file=folder / SKOPS)
    if unknown:
        raise TrainingError(_refusal(estimator, f"it holds {', '.join(unknown)}", root))
    skops.load(folder / SKOPS)
    return SKOPS


def load_estimator(path: str | Path, root: Path) -> Any:
    """Returns the estimator in a file, or in a folder that holds one.

    Raises:
      UsageError: There is none, or it could run any code and the project does not allow that.
    """
    file = next((p for p in (Path(path), Path(path) / SKOPS, Path(path) / JOBLIB) if p.is_file()), None)
    if file is None:
        raise UsageError(f"there is no estimator in {str(path)!r}: train the run first")
    if file.suffix == ".skops":
        return _module("skops.io").load(file)
    if not allows_pickle(root):
        raise UsageError(f"{str(file)!r} can run any code when it is loaded; if you trust it: {_permission(root)}")
    return _module("joblib").load(file)


def _module(name: str) -> Any:
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise missing_extra(package, "sklearn", "saving an estimator")
    return importlib.import_module(name)


def _refusal(estimator: Any, reason: str, root: Path) -> str:
    return f"{type(estimator).__name__} cannot be saved with skops: {reason}; for joblib, {_permission(root)}"


def _permission(root: Path) -> str:
    return f"set [tool.everstep] allow-pickle = true in {root / 'pyproject.toml'}"
