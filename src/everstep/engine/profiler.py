"""Traces of training steps, taken by the profiler of the backend, for TensorBoard or Perfetto.

Tracing does not change results: the same programs run on the same numbers.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import keras

from everstep.engine.engine import Engine

NAME = "train"
"""The name of the events of training steps in a trace."""


class Trace:
    """A trace that is being taken.

    Args:
      engine: The engine whose calls become events, each with the number of its first step, counted from 0.
      directory: Where the files are written.
      step: Returns the number of steps done so far.
    """

    def __init__(self, engine: Engine, directory: Path, step: Callable[[], int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._engine = engine
        self._marked: Any = engine.steps if engine.is_eager else engine.backend
        self._profiler = _PROFILERS[keras.backend.backend()](directory)
        self._mark(step)

    def stop(self) -> str:
        """Waits for the device and ends the trace; returns how to open its files."""
        vars(self._marked).pop("run", None)
        self._engine.wait()
        self._profiler.stop()
        return self._profiler.how_to_open

    def _mark(self, step: Callable[[], int]) -> None:
        """Records an event for every compiled call, or, on an eager backend, for every step.

        The method that runs them is replaced while the trace is taken, so that training without a trace costs nothing.
        """
        run, event, before, done = self._marked.run, self._profiler.event, -1, 0

        def marked(kind: str, data: Any) -> Any:
            nonlocal before, done
            if kind != "train":
                return run(kind, data)
            before, done = (before, done + 1) if before == step() else (step(), 0)
            with event(before + done):
                return run(kind, data)

        self._marked.run = marked


class _Profiler(Protocol):
    """A backend's profiler; it runs from its creation until `stop`, which writes the files."""

    how_to_open: str

    def stop(self) -> None: ...

    def event(self, step: int) -> contextlib.AbstractContextManager[Any]: ...


class _JaxProfiler:
    how_to_open = (
        "tensorboard --logdir {directory} (with the package xprof), or *.trace.json.gz in https://ui.perfetto.dev"
    )

    def __init__(self, directory: Path) -> None:
        import jax

        self._profiler = jax.profiler
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # events of all Python calls would hide the rest
        jax.profiler.start_trace(str(directory), profiler_options=options)

    def stop(self) -> None:
        self._profiler.stop_trace()

    def event(self, step: int) -> contextlib.AbstractContextManager[Any]:
        return self._profiler.StepTraceAnnotation(NAME, step_num=step)


class _TensorFlowProfiler:
    how_to_open = "tensorboard --logdir {directory} (with the package xprof)"

    def __init__(self, directory: Path) -> None:
        import tensorflow as tf

        self._profiler = tf.profiler.experimental
        options = self._profiler.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        self._profiler.start(str(directory), options=options)

    def stop(self) -> None:
        self._profiler.stop()

    def event(self, step: int) -> contextlib.AbstractContextManager[Any]:
        event: contextlib.AbstractContextManager[Any] = self._profiler.Trace(NAME, step_num=step, _r=1)
        return event


class _TorchProfiler:
    how_to_open = "{directory}/*.pt.trace.json.gz in https://ui.perfetto.dev"

    def __init__(self, directory: Path) -> None:
        import torch

        self._directory, self._profiler = directory, torch.profiler
        self._session = torch.profiler.profile()
        self._session.start()

    def stop(self) -> None:
        self._session.stop()
        name = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}.pt.trace.json.gz"
        self._session.export_chrome_trace(str(self._directory / name))

    def event(self, step: int) -> contextlib.AbstractContextManager[Any]:
        return self._profiler.record_function(f"{NAME} step {step}")


_PROFILERS: dict[str, Callable[[Path], _Profiler]] = {
    "tensorflow": _TensorFlowProfiler,
    "jax": _JaxProfiler,
    "torch": _TorchProfiler,
}
