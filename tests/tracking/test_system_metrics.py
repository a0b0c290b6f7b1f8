"""Figures of the machine; GPUs by NVIDIA's library where it is installed, else by a stand-in."""

import sys
import threading
import time
import types

import pytest

from everstep.tracking.system_metrics import Gpus, SystemMetrics, watched
from everstep.tracking.tracker import BackgroundTracker, MemoryTracker


@pytest.fixture
def two_gpus(monkeypatch):
    """A driver with two GPUs, the second of which does not report its power."""

    class NVMLError(Exception):
        pass

    def power(handle):
        if handle == 1:
            raise NVMLError("not supported")
        return 350_500

    library = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID={"GPU-b": 1}.__getitem__,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=90 + handle),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=2e9, total=8e9),
        nvmlDeviceGetPowerUsage=power,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


def test_gpus_by_the_names_that_mlflow_has(two_gpus):
    found = Gpus().read()
    assert found["gpu_0_utilization_percentage"] == 90
    assert (found["gpu_0_memory_usage_megabytes"], found["gpu_0_memory_usage_percentage"]) == (2000, 25)
    assert found["gpu_0_power_usage_watts"] == 350.5
    assert found["gpu_1_utilization_percentage"] == 91
    assert "gpu_1_power_usage_watts" not in found


@pytest.mark.parametrize(
    ("visible", "loads"), [("1", [91]), ("1,0", [91, 90]), ("GPU-b", [91]), ("", []), ("-1", []), ("0,-1,1", [90])]
)
def test_only_the_gpus_that_the_process_sees(two_gpus, monkeypatch, visible, loads):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = Gpus().read()
    assert [found[f"gpu_{number}_utilization_percentage"] for number in range(len(loads))] == loads
    assert len([name for name in found if name.endswith("utilization_percentage")]) == len(loads)


def test_without_a_driver_there_are_no_gpu_figures(monkeypatch, capfd, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    metrics = SystemMetrics(tmp_path)
    assert not [name for name in metrics.read() if "gpu" in name]
    metrics.close()
    assert capfd.readouterr() == ("", "")


def test_a_missing_directory_hides_no_other_figures(tmp_path):
    found = SystemMetrics(tmp_path / "gone").read()
    assert "system/disk_available_megabytes" not in found
    assert found["system/process_memory_usage_megabytes"] > 1


def test_a_thread_reads_until_the_block_ends(tmp_path):
    memory = MemoryTracker()
    tracker = BackgroundTracker(memory)
    tracker.start(0)
    begin = time.monotonic()
    with watched(tracker, tmp_path, 0.02, lambda: 7):
        while len(memory.points) < 2:
            assert time.monotonic() < begin + 300
            time.sleep(0.02)
    seconds = time.monotonic() - begin
    tracker.close()
    assert 2 <= len(memory.points) <= seconds / 0.02
    assert {(point.step, point.kind) for point in memory.points} == {(7, "system")}
    assert all(name.startswith("system/") for name in memory.points[0].logs)
    assert "everstep-system" not in [thread.name for thread in threading.enumerate()]


def test_the_first_reading_has_the_processor_load(tmp_path):
    memory = MemoryTracker()
    with watched(memory, tmp_path, 0.2, lambda: 7):
        while not memory.points:
            sum(range(1000))  # load
    assert memory.points[0].logs["system/cpu_utilization_percentage"] > 0


def test_an_error_of_a_tracker_is_raised_in_training(tmp_path):
    class Broken(MemoryTracker):
        def log(self, step, logs, kind):
            raise RuntimeError("broken")

    tracker = BackgroundTracker(Broken())
    tracker.start(0)
    tracker.log(1, {"a": 1.0}, "system")
    with pytest.raises(RuntimeError, match="broken"):
        tracker.flush()
    tracker.close()
