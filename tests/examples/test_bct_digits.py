"""The digits example shows what backward-compatible training is for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "bct_digits.py"


def run(directory: Path, seed: int = 0) -> dict[str, float]:
    """Runs the example as a user would; returns mAP by row, and the gain."""
    words = ["--backend", keras.backend.backend(), "--seed", str(seed), "--model-dir", str(directory)]
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *words], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    rows = re.findall(r"^(\S.*?)  +(-?\d\.\d+)  +\d\.\d+$", done.stdout, re.MULTILINE)
    return {name: float(value) for name, value in rows} | {
        "gain": float(re.search(r"^update gain: (\S+)$", done.stdout, re.MULTILINE)[1])
    }


def check(figures: dict[str, float]) -> None:
    old, cross, paragon = figures["old/old"], figures["BCT new/old"], figures["paragon (independent new/new)"]
    assert cross >= old + 0.10
    assert figures["independent new/old"] <= 0.30
    assert figures["BCT new/new"] >= paragon - 0.03
    assert 0.4 < figures["gain"] < 0.9
    assert figures["gain"] == pytest.approx((cross - old) / (paragon - old), abs=0.02)


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.timeout(1200)
def test_digits_with_three_seeds(tmp_path):
    for seed in range(3):
        check(run(tmp_path / str(seed), seed))
