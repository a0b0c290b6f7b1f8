"""Traces on JAX: XLA's own, as files for TensorBoard and for Perfetto."""

import contextlib
from pathlib import Path
from typing import Any

import jax

HOW = "tensorboard --logdir {directory} (with the package xprof), or *.trace.json.gz in https://ui.perfetto.dev"


def start(directory: Path) -> Any:
    """Begins a trace."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # every call of a Python function would hide what matters
    jax.profiler.start_trace(str(directory), profiler_options=options)


def stop(session: Any, directory: Path) -> None:
    """Ends it, and writes its files."""
    jax.profiler.stop_trace()


def event(name: str, step: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a block that is one event, with the number of a step."""
    return jax.profiler.StepTraceAnnotation(name, step_num=step)


def single_steps() -> bool:
    """Returns whether a step is an event: here it is a call, of many steps."""
    return False
