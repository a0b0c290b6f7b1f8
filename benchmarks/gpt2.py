"""GPT-2 with 124 M parameters in bfloat16: ours, `fit`, a hand-written loop on JAX, and PyTorch compiled.

    python -m benchmarks.gpt2                        # everything, for one large GPU: about eight minutes
    python -m benchmarks.gpt2 --batch 64 --variants chunk_8k remat_block
    python -m benchmarks.gpt2 --variants "mine:task.loss_chunk_tokens=8192,runtime.xla_preset=cublas"
    python -m benchmarks.gpt2 --ours runtime.deterministic=False,runtime.xla_preset=transformer --variants
    python -m benchmarks.gpt2 --small                # two cores: shows that all of it runs, and compares losses

PyTorch runs first, in a process of its own; it is a plain model with `torch.compile`, fused AdamW and bfloat16,
written after nanoGPT's architecture. The contenders on JAX run alternately in one process. Ours is `run_experiment`
with everything on. Then each variant of ours, which differs from ours in one setting, runs alternately with ours, step
by step, so that each is compiled once. The last line is JSON with all figures.

The bars: ours is at least 1.05 times as fast as `fit` and as PyTorch. The goal: half of the peak.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

PEAK = 989e12
"""Operations per second of an H100 or H200 in bfloat16, dense."""

VARIANTS: dict[str, dict[str, Any]] = {
    "keras_loss": {"task.loss_chunk_tokens": None},
    "chunk_8k": {"task.loss_chunk_tokens": 8192},
    "no_remat": {"runtime.remat": None},
    "remat_gelu_norm": {"runtime.remat": ["gelu", "norm"]},
    "no_preset": {"runtime.xla_preset": "none"},
    "cublas": {"runtime.xla_preset": "cublas"},
    "cudnn": {"runtime.xla_preset": "cudnn"},
    "triton": {"runtime.xla_preset": "triton"},
    "latency": {"runtime.xla_preset": "latency"},
    "fused_qkv": {"task.model.fused_qkv": True},
    "no_clipping": {"trainer.optimizer_config.optimizer.adamw.gradient_clip_norm": 0.0},
    "bias": {"task.model.bias": True},
    "muon": {"trainer.optimizer_config.optimizer.type": "muon"},
    "float8": {"runtime.float8": True},
    "metrics": {"task.loss_chunk_tokens": None, "metrics": True},  # accuracy and perplexity in every step
    "remat_block": {"runtime.remat": ["block"]},
    "remat_block_chunk_4k": {"runtime.remat": ["block"], "task.loss_chunk_tokens": 4096},
    "deterministic": {"runtime.deterministic": True},
}
"""What is changed in ours, by the name of the variant."""

OTHER_LOSS = {"fused_qkv", "bias", "float8"}
"""Variants whose first loss differs from that of the baseline: other initial weights, other products."""


class Shape:
    """The sizes of a run, and the operations of a token."""

    def __init__(self, batch: int, small: bool) -> None:
        self.small = small
        self.batch = min(batch, 4) if small else batch
        sizes = (256, 32, 2, 2, 64) if small else (50304, 1024, 12, 12, 768)
        self.vocabulary, self.context, self.layers, self.heads, self.width = sizes
        self.steps, self.warm = (3, 2) if small else (20, 5)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context

    @property
    def flops_per_token(self) -> float:
        """Six per weight that multiplies, and the two products of attention, forward and backward."""
        weights = self.vocabulary * self.width + self.layers * 12 * self.width**2
        return 6 * weights + 12 * self.layers * self.width * self.context

    def figures(self, seconds: list[float]) -> dict[str, Any]:
        """Returns what a list of seconds per step means."""
        median = statistics.median(seconds)
        rate = self.tokens / median
        return {
            "ms": round(median * 1000, 3),
            "tokens_per_second": round(rate),
            "mfu": round(rate * self.flops_per_token / PEAK, 4),
            "lowest_ms": round(min(seconds) * 1000, 3),
            "highest_ms": round(max(seconds) * 1000, 3),
            "rounds_ms": [round(each * 1000, 3) for each in seconds],
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpt2", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["all", "jax", "torch"], default="all")
    parser.add_argument("--batch", type=int, default=32, help="sequences of 1024 tokens in a step (default 32)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default 5)")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--ours", default="", help="settings of ours, as in a variant: key=value,key=value")
    parser.add_argument("--seconds", type=float, default=420, help="no variant is begun after so long (default 420)")
    parser.add_argument("--small", action="store_true", help="a tiny model, for two cores")
    arguments = parser.parse_args()
    shape = Shape(arguments.batch, arguments.small)
    if arguments.backend == "torch":
        results = {"torch": torch_contender(shape, arguments.rounds)}
    elif arguments.backend == "jax":
        settings = parse_variant(f"ours:{arguments.ours}")[1] if arguments.ours else {}
        results = jax_contenders(shape, arguments.rounds, settings, arguments.variants, arguments.seconds)
    else:
        results = {}
        for backend in ("torch", "jax"):
            command = [sys.executable, "-m", "benchmarks.gpt2", *sys.argv[1:], "--backend", backend]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            lines = child.stdout.splitlines()
            print("\n".join(lines[:-1] if child.returncode == 0 else lines), flush=True)
            results |= json.loads(lines[-1]) if child.returncode == 0 else {backend: {"failed": child.returncode}}
        compare(results)
    print(json.dumps(results))
    return 0


def compare(results: dict[str, dict[str, Any]]) -> None:
    """Prints the ratios that have a bar."""
    for other in ("fit", "torch", "hand", "hand_scan"):
        if "ms" in results.get(other, {}) and "ms" in results.get("ours", {}):
            print(f"ours is {results[other]['ms'] / results['ours']['ms']:.3f} times as fast as {other}")


def show(name: str, figures: dict[str, Any]) -> None:
    """Prints one contender."""
    rest = {key: value for key, value in figures.items() if key not in ("ms", "tokens_per_second", "mfu", "rounds_ms")}
    line = f"{name:28s} {figures['ms']:9.2f} ms {figures['tokens_per_second']:11,} tokens/s {figures['mfu']:7.2%}"
    print(line, " ".join(f"{key}={value}" for key, value in rest.items()), flush=True)


# -- JAX ---------------------------------------------------------------------------------------------------------------


def jax_contenders(
    shape: Shape, rounds: int, settings: dict[str, Any], variants: list[str], seconds: float
) -> dict[str, dict[str, Any]]:
    """Runs `fit`, the hand-written loops and ours alternately, then each variant with its baseline."""
    begin = time.perf_counter()
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    cache = tempfile.TemporaryDirectory()  # to ask how much memory a program needs, it is compiled again
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache.name)
    if settings.get("runtime.deterministic") is False:  # else the peers, too, would run with deterministic operations
        os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    from everstep.engine import backend

    backend.select("jax")
    from benchmarks import gpt2_jax

    contenders = {"fit": gpt2_jax.Fit(shape), "hand": gpt2_jax.Hand(shape, 1), "hand_scan": gpt2_jax.Hand(shape, 10)}
    times: dict[str, list[float]] = {name: [] for name in (*contenders, "ours")}
    for contender in contenders.values():
        contender.run(shape.warm)  # compiles

    def others() -> None:
        for name, contender in contenders.items():
            times[name].append(contender.run(shape.steps))

    times["ours"], memory = gpt2_jax.ours(shape, rounds, settings, others)
    results = {name: shape.figures(values) for name, values in times.items()}
    results["ours"] |= {**memory, **settings}
    for name, contender in contenders.items():
        results[name] |= {"loss": contender.loss}
    for name, figures in results.items():
        show(name, figures)
    compare(results)
    contenders.clear()
    baseline = gpt2_jax.Variant(shape, settings) if variants else None
    for written in variants:
        name, overrides = parse_variant(written)
        if time.perf_counter() - begin > seconds:
            print(f"{name:28s} skipped: --seconds are over", flush=True)
            continue
        try:
            results[name] = compared_variant(shape, rounds, baseline, {**settings, **overrides})
        except Exception as error:  # the others still count
            print(f"{name:28s} failed: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            results[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            continue
        show(name, results[name])
        if shape.small and name not in OTHER_LOSS:
            close = abs(results[name]["loss"] - results[name]["baseline_loss"]) < 1e-3
            results[name]["same_loss"] = close
            print(f"{name:28s} {'the same loss as' if close else 'ANOTHER LOSS THAN'} the baseline", flush=True)
    return results


def parse_variant(written: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the settings of a variant: one of the table, or `name:key=value,key=value`."""
    name, _, settings = written.partition(":")
    if not settings:
        return name, VARIANTS[name]
    pairs = [pair.partition("=") for pair in settings.split(",")]
    return name, {key: yaml_value(value) for key, _, value in pairs}


def yaml_value(text: str) -> Any:
    """Returns a number, a truth value or text."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text


def compared_variant(shape: Shape, rounds: int, baseline: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """Runs a variant and the baseline alternately, from the same first step where they are new."""
    from benchmarks import gpt2_jax

    begin = time.perf_counter()
    variant = gpt2_jax.Variant(shape, overrides)
    variant.run(shape.warm)
    compiled = time.perf_counter() - begin
    if baseline.done == 0:
        baseline.run(shape.warm)
    first, reference = variant.first_loss, baseline.first_loss
    own: list[float] = []
    other: list[float] = []
    for _ in range(max(1, rounds - 2)):  # fewer: there are many
        own.append(variant.run(shape.steps))
        other.append(baseline.run(shape.steps))
    figures = shape.figures(own)
    figures["times_baseline"] = round(statistics.median(other) / statistics.median(own), 4)
    figures |= {"baseline_ms": shape.figures(other)["ms"], "build_seconds": round(compiled, 1)}
    figures |= {"loss": first, "baseline_loss": reference, **variant.memory()}
    variant.close()
    return figures


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def torch_contender(shape: Shape, rounds: int) -> dict[str, Any]:
    """Runs the plain model on PyTorch, compiled, and returns its figures."""
    from benchmarks import gpt2_torch

    contender = gpt2_torch.Compiled(shape)
    contender.run(shape.warm)
    figures = shape.figures([contender.run(shape.steps) for _ in range(rounds)])
    figures |= contender.memory()
    show("torch", figures)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
