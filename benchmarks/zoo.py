"""Models that nobody tuned, with default settings on JAX and PyTorch: ms of a step, beside `model.fit`.

Each contender runs in a process of its own: libraries keep their choices of kernels in the process, so that a contender
that runs second in one is given those of the first. On an accelerator, another process imports its packages meanwhile,
and then waits for the device: one at a time has it, from the first array to the last step. Ours runs twice with one run
directory: the second process resumes the run, and loads what the first has compiled. On PyTorch the same layers run in
a plain loop, too (`zoo_torch.py`). Without an accelerator the models are small, and the figures say little.

    python -m benchmarks zoo --device --models U-Net ViT-S/16 --backends jax --rounds 3 --json results/zoo.json

Every finished process is a line of `results/zoo.jsonl`, written at once. `--resume` does not repeat those that are
there, and `--minutes 9` starts none that would not end in time: so the whole zoo can be measured in several calls.
`--contenders everstep fit` leaves the others out.
`python -m benchmarks.zoo results/zoo.jsonl` prints the table again.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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

FIT, FIT_20 = "fit", "fit, 20 per execution"
PLAIN = {"PyTorch": "torch", "PyTorch, deterministic": "torch-deterministic", "PyTorch, compiled": "torch-compiled"}
CONTENDERS = {
    "jax": {FIT: "fit", FIT_20: "fit20", OURS: "everstep"},
    "torch": {FIT: "fit", OURS: "everstep", **PLAIN},  # Keras has single steps on PyTorch
}
"""The contenders on each backend, and what `zoo_process` calls them."""

NAMES = sorted({name for names in CONTENDERS.values() for name in names.values()})

OF_TORCHVISION = MODELS[:4]
"""Models whose plain PyTorch is torchvision's."""

DEVICE_LOCK = Path(tempfile.gettempdir(), "everstep-zoo-device.lock")
"""Held by the process that has the accelerator."""

Measured = dict[tuple[str, str, str, int], dict[str, Any]]
"""The figures of processes, by backend, model, contender and round."""


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each model and backend, and prints a table of all."""
    measured = measure(options)
    yield from cases(measured)
    print(table(measured), flush=True)


def measure(options: Options, started: Callable[..., dict[str, Any]] | None = None) -> Measured:
    """Runs all contenders, the first round of all models first; returns their figures and those of earlier calls.

    Args:
      options: What the command line asks for.
      started: Runs a contender, given backend, model, contender, options and seconds; for tests.
    """
    end, longest = time.monotonic() + options.minutes * 60, 0.0
    path = None if options.json is None else options.json.with_suffix(".jsonl")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            path.unlink(missing_ok=True)
    measured = {} if path is None else read(path)
    finishing = threading.Lock()

    def measure_one(key: tuple[str, str, str, int]) -> None:
        nonlocal longest
        begin = time.monotonic()
        if end - begin < longest:
            print(f"{_named(key)}: not in the time that is left", flush=True)
            return
        try:
            figures = (started or trained)(*key[:3], options, end - begin)
        except subprocess.TimeoutExpired:
            print(f"{_named(key)}: not in the time that was left", flush=True)
            return
        with finishing:
            longest = max(longest, time.monotonic() - begin)
            measured[key] = figures
            print(f"{_named(key)}: {json.dumps(figures)}", flush=True)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*key, figures]) + "\n")

    missing = [key for key in _wanted(options) if "error" in measured.get(key, {"error": ""})]
    with concurrent.futures.ThreadPoolExecutor(2 if options.device else 1) as pool:
        list(pool.map(measure_one, missing))
    return {key: measured[key] for key in sorted(measured, key=lambda key: key[3])}


def _wanted(options: Options) -> Iterator[tuple[str, str, str, int]]:
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    for number in range(options.rounds):
        for model in options.models or MODELS:
            for backend in (name for name in options.installed_backends if name in CONTENDERS):
                for contender, name in CONTENDERS[backend].items():
                    if options.contenders and name not in options.contenders:
                        continue
                    if contender in PLAIN and model in OF_TORCHVISION and not has_torchvision:
                        if number == 0:
                            print(f"{model}, {contender}: left out, torchvision is not installed", flush=True)
                    else:
                        yield backend, model, contender, number


def _named(key: tuple[str, str, str, int]) -> str:
    backend, model, contender, number = key
    return f"{backend}, {model}, {contender}, round {number + 1}"


def read(path: Path) -> Measured:
    """Returns the figures of a file; of several for the same process the last."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {tuple(key): figures for *key, figures in map(json.loads, lines)}  # type: ignore[misc]


def trained(backend: str, model: str, contender: str, options: Options, seconds: float) -> dict[str, Any]:
    """Trains a model in a new process; returns its figures, or `error`. Ours is then resumed in another process.

    Raises:
      TimeoutExpired: It takes longer.
    """
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as directory:
        command = [model, CONTENDERS[backend][contender], "--directory", str(Path(directory, "run"))]
        figures = _process(backend, command, options, end)
        if contender == OURS and "error" not in figures:
            second = _process(backend, [*command, "--again"], options, end)
            figures |= {f"second_{name}": second.get(name) for name in ("first_epoch", "step_ms", "error", "digest")}
            figures |= {"said": [*figures.get("said", []), *second.get("said", [])]}
    return figures


def _process(backend: str, arguments: Iterable[str], options: Options, end: float) -> dict[str, Any]:
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment |= {} if options.device else {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    own = ["--device-lock", str(DEVICE_LOCK)] if options.device else ["--small"]
    command = [sys.executable, "-m", "benchmarks.zoo_process", *arguments, *own]
    command += ["--steps", str(options.steps)] if options.steps else []
    seconds = None if math.isinf(end) else max(end - time.monotonic(), 0.001)
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        return {"error": lines[-1][:300]}
    figures: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return figures


def rounds_of(measured: Measured, backend: str, model: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the figures of the rounds of each contender, without those that failed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (its_backend, its_model, contender, _), figures in measured.items():
        if (its_backend, its_model) == (backend, model) and "error" not in figures:
            found.setdefault(contender, []).append(figures)
    return found


def cases(measured: Measured) -> Iterator[Case]:
    """Yields a case for each model: ms of a step; in the notes the first epochs, memory, and how exact ours is."""
    for backend, model in dict.fromkeys(key[:2] for key in measured):
        rounds = rounds_of(measured, backend, model)
        notes: dict[str, Any] = {}
        for contender, figures in rounds.items():
            notes[f"first epoch of {contender}, s"] = _median(figures, "first_epoch")
            notes[f"peak bytes of {contender}"] = _median(figures, "peak_bytes")
        ours = rounds.get(OURS, [])
        notes[f"first epoch of {OURS} in a second process, s"] = _median(ours, "second_first_epoch")
        notes |= {"exactness": ours[0].get("exactness") if ours else None, "digests": len({x["digest"] for x in ours})}
        values = {contender: [one["step_ms"] for one in figures] for contender, figures in rounds.items()}
        yield Case(f"{'JAX' if backend == 'jax' else 'PyTorch'}, {model}", "ms", values, notes=notes)


def _median(figures: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = [one[name] for one in figures if one.get(name) is not None]
    return statistics.median(values) if values else None


HEAD = ("model", "fit ms", "best plain", "exact plain", "ours", "/fit", "/exact", "/best", "1st", "2nd", "mem", "exact")


def table(measured: Measured) -> str:
    """Returns one line for each model and backend.

    `/fit`, `/exact` and `/best`: how many times as fast ours is as the best setting of `fit`, as plain PyTorch with
    deterministic algorithms, and as the best plain PyTorch. `1st`, `2nd`, `mem`: our first epoch, that of a second
    process, and our memory, as multiples of those of `fit`. Behind the exactness: how many digests the rounds have.
    """
    rows = [HEAD]
    for backend, model in dict.fromkeys(key[:2] for key in measured):
        rounds = rounds_of(measured, backend, model)
        ms = {contender: _median(figures, "step_ms") for contender, figures in rounds.items()}
        ours, fit = rounds.get(OURS, []), rounds.get(FIT, [])
        best_fit, best_plain = (_least(ms, names) for names in ((FIT, FIT_20), PLAIN))
        exact_plain, own = ms.get("PyTorch, deterministic"), ms.get(OURS)
        epoch, memory = _median(fit, "first_epoch"), _median(fit, "peak_bytes")
        level = (ours[0].get("exactness") or {}).get("level", "-") if ours else "-"
        digests = len({(one.get("digest"), one.get("second_digest")) for one in ours})
        rows.append(
            (
                f"{backend} {model}",
                *(_number(value) for value in (best_fit, best_plain, exact_plain, own)),
                *(_number(_ratio(other, own)) for other in (best_fit, exact_plain, best_plain)),
                _number(_ratio(_median(ours, "first_epoch"), epoch)),
                _number(_ratio(_median(ours, "second_first_epoch"), epoch)),
                _number(_ratio(_median(ours, "peak_bytes"), memory)),
                f"{level}, {digests} of {len(ours)}",
            )
        )
    for key, figures in measured.items():
        rows += [(f"{_named(key)}: {what}", *[""] * 11) for what in [figures.get("error")] if what]
        rows += [(f"{_named(key)} said: {line}", *[""] * 11) for line in figures.get("said") or []]
    tabular = [row for row in rows if row[1]]
    widths = [max(len(row[column]) for row in tabular) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _least(values: Mapping[str, float | None], names: Iterable[str]) -> float | None:
    return min((value for name in names if (value := values.get(name)) is not None), default=None)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def main() -> None:
    """Prints the table of measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=table.__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files of finished processes, such as results/zoo.jsonl")
    merged: Measured = {}
    for path in parser.parse_args().files:
        merged |= read(path)
    print(table(merged))


if __name__ == "__main__":
    main()
