"""Variables that are divided over eight devices train, are saved and resume as those of one device."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).with_name("check_sharding.py")


def check(devices, *arguments, returncode=0):
    command = [sys.executable, str(SCRIPT), str(devices), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert result.returncode == returncode, result.stderr[-3000:]
    return json.loads(result.stdout) if result.stdout else None


@pytest.mark.full
def test_every_way_to_use_the_devices_gives_the_same_losses(tmp_path):
    (_, one), *others = check(8, "same_losses", tmp_path)
    for kind, result in others:
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5, err_msg=kind)
    results = dict(others)
    assert results["mesh"]["engine"]["mesh"] == {"data": 2, "model": 4}
    first, second = [result for kind, result in others if kind == "fsdp"]
    assert first == second, "two runs of one configuration end with other bits"


@pytest.mark.full  # divided states are saved and restored daily by tests/several/test_divided_state.py
def test_a_killed_run_resumes_with_the_same_bits(tmp_path):
    check(8, "killed", tmp_path / "killed", 50, returncode=-9)
    whole, resumed = check(8, "whole_and_resumed", tmp_path / "whole", tmp_path / "killed")
    assert resumed == whole


@pytest.mark.full
def test_saved_on_eight_devices_and_resumed_on_fewer(tmp_path):
    whole = check(8, "run", tmp_path / "whole", "fsdp")
    for devices, steps in [(8, 20), (4, 40), (2, 60), (1, 80)]:
        resumed = check(devices, "run", tmp_path / "fewer", "fsdp", steps)
        assert resumed["engine"]["mesh"] == {"data": devices}
    np.testing.assert_allclose(resumed["losses"], whole["losses"], rtol=1e-5)


@pytest.mark.full  # bytes per device are compared daily by tests/several/test_divided_state.py
def test_a_model_that_fits_no_device_trains_in_parts(tmp_path):
    found = check(8, "too_large", tmp_path)
    limit = 16 << 20  # bytes of a device
    little = 1 << 20  # batches, second copies of small variables
    assert found["replicated"] > 3 * limit
    assert found["fsdp"] < limit / 2
    assert found["initialised"] <= found["fsdp"] + little, "a device held more than its parts"
    assert found["fsdp"] <= found["trained"] <= found["fsdp"] + little
