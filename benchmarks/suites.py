"""The suites by name. One with `run(options)` returns its cases; the others are programs that end with a JSON line."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import ROOT
from benchmarks.options import Options
from benchmarks.results import Case

SUITES: dict[str, str] = {
    "mlp": "small dense networks on each backend: fit, hand-written loops, Orbit, Lightning",
    "models": "a CNN, an LSTM and a transformer beside the best setting of fit",
    "overhead": "everything on beside everything off",
    "short_fit": "whole calls of 50 steps, the first and the second, beside those of fit",
    "input": "image folders, TFRecord, ArrayRecord, Parquet, Hugging Face datasets, beside tf.data, Grain, PyTorch",
    "growth": "how cost grows with steps, metrics, variables, checkpoints and epochs",
    "evaluation": "evaluation, sample by sample",
    "zoo": "models that nobody tuned, each contender in a process of its own, beside fit and plain PyTorch",
    "processes": "what the way of several processes costs a single one; 1, 2 and 4 processes on this machine",
}
"""Suites of this package: module and what it measures."""

PROGRAMS: dict[str, str] = {
    "device_data": "batches that are gathered on the device",
    "torch_steps": "steps on PyTorch",
    "gpt2": "GPT-2 with 124 M parameters",
    "hub": "KerasHub's GPT-2: pretraining, and adapters on packed texts, beside fit",
    "startup": "from the command to the first step",
    "forward": "evaluation and prediction",
}
"""Modules with a `main()` that prints its figures, and as its last line JSON."""


def names() -> list[str]:
    """Returns the suites that exist here."""
    return [*SUITES, *(name for name in PROGRAMS if importlib.util.find_spec(f"benchmarks.{name}") is not None)]


def run(name: str, options: Options) -> Iterator[Case]:
    """Runs a suite; yields each case when it is measured."""
    if name in SUITES:
        yield from importlib.import_module(f"benchmarks.{name}").run(options)
    else:
        yield from run_program(name, options)


def run_program(name: str, options: Options) -> list[Case]:
    """Runs a module in a process of its own, shows what it prints, and returns its last line as cases.

    The line is one of these; other keys are notes:
      {"cases": [{"name", "unit", "values": {contender: [value of each round]}}]}
      {"name", "unit", "values": {…}}
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    if not options.device:
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    last = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)
        last = line if line.strip() else last
    if process.wait():
        raise SystemExit(f"benchmarks.{name} ended with exit code {process.returncode}")
    return cases_of(name, json.loads(last))


def cases_of(name: str, found: Any) -> list[Case]:
    """Returns the JSON line of a program as cases; one without raw values becomes a case of notes alone."""
    listed = found if isinstance(found, list) else found.get("cases", [found])
    cases = []
    for one in listed:
        values = {key: value if isinstance(value, list) else [value] for key, value in one.get("values", {}).items()}
        notes = {key: value for key, value in one.items() if key not in ("name", "unit", "values", "series", "x")}
        known = {"series": one.get("series", ""), "x": one.get("x"), "notes": notes}
        cases.append(Case(str(one.get("name", name)), str(one.get("unit", "")), values, **known))
    return cases
