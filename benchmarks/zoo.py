"""Models that nobody tuned, with default settings on JAX: ms of a step, beside `model.fit`.

Each contender runs in a process of its own, in alternation: libraries keep their choices of kernels in the process, so
that a contender that runs second in one is given those of the first. Without an accelerator the models are small, and
the figures say little.

    python -m benchmarks zoo --device --rounds 3 --json results/zoo.json
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT
from benchmarks.options import Options
from benchmarks.results import OURS, Case

MODELS = (
    *("ResNet50", "EfficientNetV2-B0", "ConvNeXt-Tiny", "MobileNetV3", "U-Net", "ViT-S/16", "BERT-base", "LSTM"),
    *("diffusion U-Net", "tabular", "GPT-2 124M", "MLP"),
)
"""The keys of `zoo_models.MODELS`, which only a process with Keras can import."""

CONTENDERS = {"fit": "fit", "fit, 20 per execution": "fit20", OURS: "everstep"}
"""The contenders, and what `zoo_process` calls them."""


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each model."""
    if "jax" in options.installed_backends:
        for model in MODELS:
            yield measure(model, options)


def measure(model: str, options: Options) -> Case:
    """Returns the ms of a step of each contender; in the notes the first epoch, memory, and how exact ours is."""
    rounds = [
        {name: trained(model, contender, options) for name, contender in CONTENDERS.items()}
        for _ in range(options.rounds)
    ]
    notes: dict[str, Any] = {}
    for name in CONTENDERS:
        notes[f"first epoch of {name}, s"] = statistics.median(one[name]["first_epoch"] for one in rounds)
        notes[f"peak bytes of {name}"] = rounds[0][name]["peak_bytes"]
    notes |= {"exactness": rounds[0][OURS].get("exactness"), "digests": len({one[OURS]["digest"] for one in rounds})}
    values = {name: [one[name]["step_ms"] for one in rounds] for name in CONTENDERS}
    return Case(f"JAX, {model}", "ms", values, notes=notes)


def trained(model: str, contender: str, options: Options) -> dict[str, Any]:
    """Trains a model in a new process; returns its figures."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment |= {} if options.device else {"JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.zoo_process", model, contender]
        command += ["--directory", str(Path(directory, "run")), *([] if options.device else ["--small"])]
        command += ["--steps", str(options.steps)] if options.steps else []
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stderr)
    figures: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return figures
