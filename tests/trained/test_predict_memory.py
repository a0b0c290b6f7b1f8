"""Predicting in constant memory: the peak does not grow with the data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from tests.trained.predict_models import train

pytestmark = [pytest.mark.backend, pytest.mark.full]

SOURCES = Path(__file__).parents[2] / "src"
ROWS, PIECES = 200_000, 60

PREDICT = """
import re, sys, pathlib
from everstep.cli.main import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


def piece(number):
    values = np.random.default_rng(number).normal(size=(ROWS, 4)).astype("float32")
    return pa.table({f"f{index}": values[:, index] for index in range(4)})


def write(path, pieces):
    """Writes a file of several pieces; tables piece by piece."""
    if path.suffix == ".npz":
        arrays = np.concatenate([np.stack(piece(n).columns, axis=1).astype("float64") for n in range(pieces)])
        np.savez(path, x=arrays)
        return path
    schema = piece(0).schema
    writer = pacsv.CSVWriter(path, schema) if path.suffix == ".csv" else pq.ParquetWriter(path, schema)
    with writer:
        for number in range(pieces):
            writer.write_table(piece(number)) if path.suffix == ".csv" else writer.write_table(piece(number), ROWS)
    return path


def peak(folder, data):
    """Predicts in a fresh process; returns the number of rows and the peak memory."""
    output = data.with_name(f"{data.name}.out.parquet")
    words = ["predict", str(folder / "run"), "--input", str(data), "--output", str(output), "--batch-size", "8192"]
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", PREDICT, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = int(re.search(r": (\d+) rows", done.stdout)[1])
    assert pq.read_metadata(output).num_rows == rows
    return rows, int(done.stdout.split()[-1]) * 1024


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_memory_does_not_grow_with_the_data(tmp_path, suffix):
    train(tmp_path / "run")
    few = write(tmp_path / f"few{suffix}", 1)
    many = write(tmp_path / f"many{suffix}", PIECES)
    _, base = peak(tmp_path, few)
    rows, most = peak(tmp_path, many)
    print(f"{suffix}: {rows:,} rows, {many.stat().st_size >> 20} MiB; peak {most >> 20} MiB, of a few {base >> 20} MiB")
    assert rows == PIECES * ROWS
    assert most - base < 0.35 * many.stat().st_size
