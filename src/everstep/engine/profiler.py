"""A trace of some steps, by the profiler of the backend, in files that TensorBoard or Perfetto opens.

Looking changes nothing: the same programs run on the same numbers.
"""

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import keras

_PROFILERS = {
    "tensorflow": "everstep.engine.profiler_tensorflow",
    "jax": "everstep.engine.profiler_jax",
    "torch": "everstep.engine.profiler_torch",
}
NAME = "train"
"""What the events of our steps are called in a trace."""


class _Profiler(Protocol):
    HOW: str

    def start(self, directory: Path) -> Any: ...

    def stop(self, session: Any, directory: Path) -> None: ...

    def event(self, name: str, step: int) -> contextlib.AbstractContextManager[Any]: ...

    def single_steps(self) -> bool: ...


class Trace:
    """A trace that is being taken.

    Args:
      engine: Whose calls become events, each with the number of its first step, counted from 0.
      directory: Where the files go.
      step: Returns the steps done so far.
    """

    def __init__(self, engine: Any, directory: Path, step: Callable[[], int]) -> None:
        self._engine, self._directory = engine, directory
        self._profiler = _profiler()
        directory.mkdir(parents=True, exist_ok=True)
        self._session = self._profiler.start(directory)
        self._mark(step)

    def stop(self) -> str:
        """Ends it, when the device has done what it was given; returns how to open the files."""
        with contextlib.suppress(AttributeError):
            del self._engine._train
        with contextlib.suppress(AttributeError):
            del self._engine._train_step
        self._engine.wait()
        self._profiler.stop(self._session, self._directory)
        return self._profiler.HOW

    def _mark(self, step: Callable[[], int]) -> None:
        """Makes an event of every call, or of every step where they are run one by one.

        The engine's own methods are hidden behind others as long as the trace is taken: without one, nothing is asked.
        """
        engine, event = self._engine, self._profiler.event
        if not self._profiler.single_steps():
            train = engine._train

            def marked(piece: Any) -> None:
                with event(NAME, step()):
                    train(piece)

            engine._train = marked
            return
        one, before, done = engine._train_step, [-1], [0]

        def marked_step(batch: Any) -> None:
            done[0], before[0] = (done[0] + 1, before[0]) if before[0] == step() else (0, step())
            with event(NAME, before[0] + done[0]):
                one(batch)

        engine._train_step = marked_step


def _profiler() -> _Profiler:
    return importlib.import_module(_PROFILERS[keras.backend.backend()])
