"""Read by Python at the start of every process that a test starts: Keras does not import what it does not need.

Keras imports pandas, scikit-learn, Matplotlib and IPython where they are installed, and on JAX all of TensorFlow, to
seed it; TensorBoard imports the client of S3. They are installed for other tests; an installation for JAX need not
have them. On PyTorch it imports the compiler, to keep two functions out of compiled programs, and so does PyTorch to
tell it of deterministic algorithms. Skipping them halves the start of a process. All other modules can import them,
and a TensorFlow that is already imported is seeded.
"""

import functools
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

SPARED = dict.fromkeys(["pandas", "sklearn", "matplotlib", "IPython"], "keras.") | {"boto3": "tensorboard."}
"""Packages that are not found, and the importing modules (by prefix) that do not find them."""

ASKING = ("keras.src.utils.rng_utils", "keras.src.saving.serialization_lib")
"""Import TensorFlow to seed it, and to know its types. Keras remembers for all its modules that an import failed, so
none fails here."""

COMPILER = "torch._dynamo"
DECORATED = ("keras.src.backend.torch.image", "keras.src.backend.torch.random")
"""Modules that import PyTorch's compiler for `@dynamo.disable()`, which does nothing where nothing is compiled."""


class Sparing:
    """The first finder; it only prevents imports, also those of two modules and a function that it lets pass."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raises ModuleNotFoundError where an import is to be skipped; otherwise leaves it to the next finder."""
        if name in SPARED and _importer(sys._getframe(1)).startswith(SPARED[name]):
            raise ModuleNotFoundError(f"No module named {name!r}: spared by {__file__}", name=name)
        load = _torch if name == "torch" else _asking if name in ASKING else None
        if name in DECORATED and COMPILER not in sys.modules:
            load = _decorated
        if load is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(load, spec.loader.exec_module)
        return spec


class _IfImported:
    """Keras's lazy TensorFlow, except that the question whether it is available does not import it."""

    def __init__(self, lazy: Any) -> None:
        self._lazy = lazy

    @property
    def available(self) -> bool:
        return "tensorflow" in sys.modules and self._lazy.available

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lazy, name)


def _asking(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Loads a module for which TensorFlow is there only if something else has imported it."""
    execute(module)
    module.tf = _IfImported(module.tf)


def _torch(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Loads PyTorch; asked for deterministic algorithms, it tells a compiler that is there, and imports none."""
    execute(module)
    everywhere = module.use_deterministic_algorithms

    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        if COMPILER in sys.modules:
            everywhere(mode, warn_only=warn_only)
        else:
            module._C._set_deterministic_algorithms(mode, warn_only=warn_only)

    module.use_deterministic_algorithms = use_deterministic_algorithms


def _decorated(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Loads a module while the compiler is another module, that has the decorator alone."""
    sys.modules[COMPILER] = ModuleType(COMPILER)
    sys.modules[COMPILER].disable = lambda: lambda function: function
    try:
        execute(module)
    finally:
        del sys.modules[COMPILER]


def _importer(frame: FrameType | None) -> str:
    """Returns the name of the module that imports, without the import machinery."""
    while frame and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame else ""


sys.meta_path.insert(0, Sparing())
