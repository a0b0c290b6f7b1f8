"""Figures of the machine: processors, memory, disk, and NVIDIA's GPUs where there are any.

Names are MLflow's own, so that its page of system metrics shows them. A thread reads them every few seconds.
"""

import contextlib
import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from everstep.errors import missing_extra
from everstep.tracking.tracker import Tracker
from everstep.types import Logs

_MEGABYTE = 1e6


def require(seconds: float) -> None:
    """Checks that the machine can be read every so many seconds.

    Raises:
      UsageError: The package is not installed.
    """
    if seconds and importlib.util.find_spec("psutil") is None:
        raise missing_extra("psutil", "system", "trainer.tracking.system_seconds")


class SystemMetrics:
    """Reads the figures of this machine and this process.

    Args:
      directory: Whose disk counts: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        import psutil

        self._directory, self._psutil = directory, psutil
        self._process = psutil.Process()
        self._gpus = Gpus()
        psutil.cpu_percent()  # the next call returns the utilization since this one

    def read(self) -> Logs:
        """Returns the figures of this moment, by names that begin with `system/`, without what cannot be read."""
        found: Logs = {}
        for figures in (self._processor, self._memory, self._disk, self._gpus.read):
            with contextlib.suppress(OSError, self._psutil.Error):
                found |= figures()
        return {f"system/{name}": float(value) for name, value in found.items()}

    def close(self) -> None:
        """Releases the driver."""
        self._gpus.close()

    def _processor(self) -> Logs:
        return {"cpu_utilization_percentage": self._psutil.cpu_percent()}

    def _memory(self) -> Logs:
        memory = self._psutil.virtual_memory()
        return {
            "system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "process_memory_usage_megabytes": self._process.memory_info().rss / _MEGABYTE,
        }

    def _disk(self) -> Logs:
        disk = shutil.disk_usage(self._directory)
        return {
            "disk_usage_percentage": 100 * disk.used / max(1, disk.total),
            "disk_available_megabytes": disk.free / _MEGABYTE,
        }


class Gpus:
    """The GPUs that this process may use, through NVIDIA's management library; none where there is no driver.

    Their numbers are those that the process knows them by, after `CUDA_VISIBLE_DEVICES`.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self._handles: list[Any] = []
        with contextlib.suppress(Exception):  # no package, no driver, no GPU, no permission: no figures
            import pynvml

            pynvml.nvmlInit()
            self._library = pynvml
            self._handles = list(_visible(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def read(self) -> Logs:
        """Returns the figures of each, without what a GPU does not report."""
        found: Logs = {}
        for number, handle in enumerate(self._handles):
            for figures in (self._load, self._memory, self._power):
                with contextlib.suppress(self._library.NVMLError):
                    found |= {f"gpu_{number}_{name}": value for name, value in figures(handle).items()}
        return found

    def close(self) -> None:
        """Releases the driver."""
        if self._library is not None:
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlShutdown()
            self._library, self._handles = None, []

    def _load(self, handle: Any) -> Logs:
        return {"utilization_percentage": self._library.nvmlDeviceGetUtilizationRates(handle).gpu}

    def _memory(self, handle: Any) -> Logs:
        memory = self._library.nvmlDeviceGetMemoryInfo(handle)
        return {
            "memory_usage_megabytes": memory.used / _MEGABYTE,
            "memory_usage_percentage": 100 * memory.used / max(1, memory.total),
        }

    def _power(self, handle: Any) -> Logs:
        return {"power_usage_watts": self._library.nvmlDeviceGetPowerUsage(handle) / 1000}


def _visible(library: Any, variable: str | None) -> Iterator[Any]:
    """Yields the GPUs that a process sees: all of them, or those in `CUDA_VISIBLE_DEVICES`, by number or by id."""
    if variable is None:
        yield from map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return
    for name in filter(None, map(str.strip, variable.split(","))):
        if name.lstrip("-").isdecimal():
            if int(name) < 0:  # CUDA stops reading there
                return
            yield library.nvmlDeviceGetHandleByIndex(int(name))
        else:
            yield library.nvmlDeviceGetHandleByUUID(name)


@contextlib.contextmanager
def watched(tracker: Tracker, directory: Path, seconds: float, step: Callable[[], int]) -> Iterator[None]:
    """Inside the block a thread logs the figures of the machine to a tracker, as the kind `system`.

    Args:
      tracker: A `BackgroundTracker`, or one around it: it is called from another thread.
      directory: The run directory.
      seconds: Between two readings; 0 for none.
      step: Returns the step to log a reading at.
    """
    if not seconds:
        yield
        return
    ended = threading.Event()

    def work() -> None:
        with contextlib.closing(SystemMetrics(directory)) as metrics:  # psutil compares with this thread's last reading
            while not ended.wait(seconds):
                tracker.log(step(), metrics.read(), "system")

    thread = threading.Thread(target=work, name="everstep-system", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
