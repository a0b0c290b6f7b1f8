"""Read by Python at the start of every process that a test starts: Keras does not import optional packages.

Keras imports pandas, scikit-learn, Matplotlib and IPython where they are installed, and on JAX all of TensorFlow, to
seed it. They are installed for other tests; an installation for JAX need not have them. Skipping them halves the start
of a process. All other modules can import them, and a TensorFlow that is already imported is seeded.
"""

import sys
from collections.abc import Sequence
from types import FrameType

SPARED = {"tensorflow": "keras.src.utils.rng_utils"}
SPARED |= dict.fromkeys(["pandas", "sklearn", "matplotlib", "IPython"], "keras.")
"""Packages that are not found, and the importing modules (by prefix) that do not find them."""

MACHINERY = ("importlib", "keras.src.utils.module_utils")


class Sparing:
    """The first finder; it only prevents imports."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raises ModuleNotFoundError where an import is to be skipped; otherwise leaves it to the next finder."""
        if name in SPARED and _importer(sys._getframe(1)).startswith(SPARED[name]):
            raise ModuleNotFoundError(f"No module named {name!r}: spared by {__file__}", name=name)


def _importer(frame: FrameType | None) -> str:
    """Returns the name of the module that imports, without the import machinery."""
    while frame and frame.f_globals.get("__name__", "").startswith(MACHINERY):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame else ""


sys.meta_path.insert(0, Sparing())
