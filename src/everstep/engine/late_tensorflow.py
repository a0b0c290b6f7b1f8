"""TensorFlow beside another backend: Keras does not import it unasked, and it is seeded when a program imports it.

`keras.utils.set_random_seed` imports TensorFlow on every backend, because a program may read its data with `tf.data`;
`model.save` does, to see whether a value of a config is TensorFlow's; KerasHub does when it is imported, and when
it opens a preset. That takes seconds, and most programs on JAX and PyTorch never use it.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from everstep import keras_internals
from everstep.startup_messages import QuietImport, held_back

NAME = "tensorflow"


def seed_or_wait(seed: int, seed_all: Callable[[int], None]) -> None:
    """Calls `keras.utils.set_random_seed` without importing TensorFlow; that gets the seed if it is imported later.

    Its GPUs are hidden from it, now or then: the memory belongs to the backend.

    Args:
      seed: The seed.
      seed_all: `keras.utils.set_random_seed`.
    """
    if NAME in sys.modules:
        with held_back():  # it looks for a GPU, and says so where there is none
            seed_all(seed)
        hide_gpus(sys.modules[NAME])
        return
    with only_if_imported(keras_internals.rng_utils):
        seed_all(seed)
    _on_import.seed = seed
    if _on_import not in sys.meta_path:
        sys.meta_path.insert(0, _on_import)


def hide_gpus(tensorflow: Any) -> None:
    """Makes TensorFlow use no GPU.

    Raises:
      RuntimeError: It uses them already.
    """
    with warnings.catch_warnings(), held_back():  # it says that there is no GPU, where there is none
        warnings.simplefilter("ignore")
        tensorflow.config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def only_if_imported(module: Any) -> Iterator[None]:
    """Inside the block this module of Keras finds TensorFlow only if something else has imported it.

    Args:
      module: Its `tf` is Keras's lazy TensorFlow.
    """
    found = module.tf
    module.tf = _IfImported(found)
    try:
        yield
    finally:
        module.tf = found


@contextlib.contextmanager
def not_found() -> Iterator[None]:
    """Inside the block TensorFlow is not found, as if it were not installed, unless it is imported already.

    For packages that use it where it is installed, and work without it: KerasHub tokenizes with the same libraries in
    both cases. Keras does not remember that it has not found it.
    """
    if NAME in sys.modules:
        yield
        return
    lazy = [vars(keras_internals.module_utils)[name] for name in ("tensorflow", "gfile")]
    known = [module._available for module in lazy]
    _search.hide()
    try:
        yield
    finally:
        _search.show()
        for module, available in zip(lazy, known, strict=True):
            module._available = available


class _Search:
    """Python's search for packages in folders; while it hides something, TensorFlow and what belongs to it are missing.

    They are missing as packages are that nobody has installed: an import raises an error, and
    `importlib.util.find_spec`, which JAX's cache of programs calls, returns None.
    """

    def __init__(self) -> None:
        self._blocks = 0
        self._lock = threading.Lock()
        self._own: Any = PathFinder  # the search that it takes the place of

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Returns what Python's own search returns, unless it is hidden."""
        hidden = name.partition(".")[0] in (NAME, "tensorflow_text")
        return None if hidden else self._own.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def hide(self) -> None:
        """Takes the place of Python's search, with the first of several blocks."""
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                is_search = [isinstance(one, type) and issubclass(one, PathFinder) for one in sys.meta_path]
                place = is_search.index(True)
                self._own, sys.meta_path[place] = sys.meta_path[place], self

    def show(self) -> None:
        """Gives it back, with the last of several blocks."""
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                sys.meta_path[sys.meta_path.index(self)] = self._own


_search = _Search()


class _IfImported:
    """Keras's lazy TensorFlow, except that the question whether it is available does not import it."""

    def __init__(self, found: Any) -> None:
        self._found = found

    @property
    def available(self) -> bool:
        return NAME in sys.modules and self._found.available

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)


class _OnImport(QuietImport):
    """Has TensorFlow seeded once it is imported."""

    seed = 0

    def imported(self, module: Any) -> None:
        """Seeds it, and hides its GPUs."""
        super().imported(module)
        module.random.set_seed(self.seed)
        hide_gpus(module)


_on_import = _OnImport(NAME)
