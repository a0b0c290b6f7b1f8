import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("check_export.py")
# NumPy 2 deprecates how Keras's variables convert themselves.
WARNINGS = ["-W", "error", "-W", "ignore:__array__ implementation:DeprecationWarning"]


@pytest.mark.full  # every day, in the process of the tests: tests/export/test_serving.py
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_exports_load_back(backend, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, *WARNINGS, SCRIPT, tmp_path], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    checks = [line for line in SCRIPT.read_text().splitlines() if line.startswith("def check_")]
    assert len(result.stdout.splitlines()) == len(checks)
    assert "Assets written" not in result.stderr
