"""An environment of its own for tests that install something: it sees the packages of this one, and this source."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import everstep

SOURCE = Path(everstep.__file__).resolve().parent.parent
TREE = SOURCE.parent


class Environment:
    """A virtual environment.

    Args:
      folder: Where to make it.
      paths: Folders that it sees beside its own packages.
      backend: What Keras computes with in it.
    """

    def __init__(self, folder, paths=(SOURCE,), backend=None):
        venv.create(folder, with_pip=False)
        self.python = str(folder / "bin" / "python")
        (packages,) = (folder / "lib").glob("python*/site-packages")
        seen = [*map(str, paths), sysconfig.get_paths()["purelib"]]
        (packages / "seen.pth").write_text("".join(f"{path}\n" for path in seen))
        hidden = ("PYTHONPATH", "MLFLOW_TRACKING_URI")
        self.variables = {key: value for key, value in os.environ.items() if key not in hidden}
        self.variables |= {"KERAS_BACKEND": backend} if backend else {}

    def run(self, cwd, *words, code=0, timeout=1500):
        """Runs Python with words, in a folder; returns what came of it."""
        command = [self.python, *map(str, words)]
        done = subprocess.run(
            command, cwd=cwd, env=self.variables, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-5000:]
        return done

    def install(self, folder):
        """Installs a project as its developers do: `pip install -e .`, without what it needs, which is there."""
        words = ("install", "-q", "--no-deps", "--no-build-isolation", "-e", ".")
        self.run(folder, "-m", "pip", *words)


def build_isolation():
    """The flag that builds a wheel with what is installed, where that is new enough."""
    version = importlib.metadata.version("setuptools") if "setuptools" in _installed() else "0"
    return ["--no-build-isolation"] if int(version.partition(".")[0]) >= 77 else []


def _installed():
    return {(found.metadata["Name"] or "").lower() for found in importlib.metadata.distributions(path=sys.path)}
