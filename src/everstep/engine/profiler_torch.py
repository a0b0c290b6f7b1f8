"""Traces on PyTorch: its own profiler's, as a file for Perfetto and for Chrome."""

import contextlib
import time
from pathlib import Path
from typing import Any

import torch

HOW = "{directory}/*.pt.trace.json.gz in https://ui.perfetto.dev"


def start(directory: Path) -> Any:
    """Begins a trace; returns what ends it."""
    session = torch.profiler.profile()
    session.start()
    return session


def stop(session: Any, directory: Path) -> None:
    """Ends it, and writes its file."""
    session.stop()
    session.export_chrome_trace(str(directory / f"{time.strftime('%Y_%m_%d_%H_%M_%S')}.pt.trace.json.gz"))


def event(name: str, step: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a block that is one event, with the number of a step."""
    return torch.profiler.record_function(f"{name} step {step}")


def single_steps() -> bool:
    """Returns whether a step is an event."""
    return True
