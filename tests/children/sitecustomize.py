"""Read by Python at the start of every process that a test starts: Keras does without what it only looks for.

Keras imports pandas, scikit-learn, Matplotlib and IPython where they are installed, and on JAX all of TensorFlow, to
give it a seed. They are here for other tests; whoever installs everstep for JAX need not have them. Without them up to
half of a process's start is saved. Everyone else who imports them gets them, and a TensorFlow that is there is seeded.
"""

import sys
from collections.abc import Sequence
from types import FrameType

SPARED = {"tensorflow": "keras.src.utils.rng_utils"}
SPARED |= dict.fromkeys(["pandas", "sklearn", "matplotlib", "IPython"], "keras.")
"""What is not found, and by whom."""

MACHINERY = ("importlib", "keras.src.utils.module_utils")


class Sparing:
    """A finder that comes first, and finds nothing."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raises ModuleNotFoundError where a package is to be spared; otherwise others go on to look."""
        if name in SPARED and _importer(sys._getframe(1)).startswith(SPARED[name]):
            raise ModuleNotFoundError(f"No module named {name!r}: spared by {__file__}", name=name)


def _importer(frame: FrameType | None) -> str:
    """Returns the name of the module that imports, beyond the machinery that does it."""
    while frame and frame.f_globals.get("__name__", "").startswith(MACHINERY):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame else ""


sys.meta_path.insert(0, Sparing())
