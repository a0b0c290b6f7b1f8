"""Traces on TensorFlow: its own profiler's, as files for TensorBoard."""

import contextlib
from pathlib import Path
from typing import Any

import tensorflow as tf

HOW = "tensorboard --logdir {directory} (with the package xprof)"


def start(directory: Path) -> Any:
    """Begins a trace."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    tf.profiler.experimental.start(str(directory), options=options)


def stop(session: Any, directory: Path) -> None:
    """Ends it, and writes its files."""
    tf.profiler.experimental.stop()


def event(name: str, step: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a block that is one event, with the number of a step."""
    return tf.profiler.experimental.Trace(name, step_num=step, _r=1)


def single_steps() -> bool:
    """Returns whether a step is an event: here it is a call, of many steps."""
    return False
