"""A path itself: for data that the project's own code opens."""

import shutil
from pathlib import Path
from typing import Any

from everstep.catalog.dataset import Dataset
from everstep.config.problem import show
from everstep.errors import UsageError


class PathItself(Dataset):
    """A file or folder that is handed over as it is; what lies in a store is fetched first."""

    def load(self, path: Path) -> Path:
        """Returns the path on this machine."""
        return path

    def save(self, value: Any, path: Path) -> None:
        """Copies a file or a folder."""
        if not isinstance(value, str | Path) or not Path(value).exists():
            raise UsageError(f"expected the path of a file or folder to copy, received {show(value)}")
        if Path(value).is_dir():
            shutil.copytree(value, path)
        else:
            shutil.copyfile(value, path)
