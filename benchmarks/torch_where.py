"""Where the time of a step on PyTorch goes, and what each kind of faster form of Keras's operations saves.

    python -m benchmarks.torch_where ResNet50 ViT-S/16 U-Net [--json where.json] [--small] [--seconds 60]

For each model of the zoo: ms of a step as a CUDA graph, with Keras's own operations, with each kind of
`everstep.engine.torch_forms` alone, and with all; then the time on the GPU of an eager step without and with them, by
groups of kernels and by operations. A kind that cannot be recorded says why. Nothing is started that would not end in
`--seconds` per model, as far as the steps so far tell. Without a GPU the models are small, a list of operations takes
the place of CUDA graphs, and only the numbers of operations mean something.
"""

import argparse
import contextlib
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.engine import backend

backend.select("torch")

import keras  # noqa: E402
import torch  # noqa: E402

import everstep as es  # noqa: E402
from benchmarks import zoo_models  # noqa: E402
from everstep.engine import torch_forms  # noqa: E402
from everstep.engine.backend import create_engine  # noqa: E402
from everstep.engine.torch import own_operations  # noqa: E402
from everstep.engine.torch_graph import CudaGraph  # noqa: E402

GPU = torch.cuda.is_available()
KINDS = sorted(torch_forms.KINDS)
VARIANTS = {"all": KINDS, "none": [], **{f"{kind} alone": [kind] for kind in KINDS}}
VARIANTS |= {f"all but {kind}": [other for other in KINDS if other != kind] for kind in KINDS}
PROFILED = ("none", "all")

GROUPS = {
    "attention": r"flash|fmha|attention",
    "batch norm": r"batch_?norm|bn_fw|bn_bw|\bbn_",
    "layer or group norm": r"layer_?norm|group_?norm|GammaBeta|RowwiseMoments|cuComputeGradInput",
    "pooling": r"pool",
    "layout": r"nchwToNhwc|nhwcToNchw|transpose|tensorTransform",
    "optimizer, many tensors at once": r"multi_tensor_apply",
    "convolution": r"conv|cudnn|implicit|xmma|fprop|dgrad|wgrad|depthwise",
    "matrix product": r"gemm|gemv|nvjet|cublas|cutlass|splitK",
    "copy or cast": r"copy|Memcpy|CatArray",
    "fill": r"fill|Memset",
    "reduction": r"reduce",
    "softmax or loss": r"softmax|nll",
    "elementwise": r"elementwise|threshold",
}
"""Groups of kernels by what is in their names; the first that fits."""


def main() -> None:
    """Prints the tables of the models that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_where", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", choices=list(zoo_models.MODELS))
    parser.add_argument("--small", action="store_true", default=not GPU, help="the sizes of the tests")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each model (default 60)")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if GPU else "cpu"
    found: dict[str, Any] = {"torch": torch.__version__, "keras": keras.__version__, "device": device, "models": {}}
    if not GPU:
        torch_forms.DEVICES.add("cpu")
    for name in options.models:
        try:
            found["models"][name] = measured(name, options.small, options.seconds)
        except Exception as error:  # the other models are measured all the same
            found["models"][name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(f"{name}: {found['models'][name]['error']}", flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(found, indent=1))
        keras.utils.clear_session()
        if GPU:
            torch.cuda.empty_cache()


def measured(name: str, small: bool, seconds: float) -> dict[str, Any]:
    """Returns and prints the figures of one model."""
    begin = time.perf_counter()
    backend.prepare(0)
    trained = zoo_models.build(name, small, 1)
    torch_forms.KINDS.clear()
    torch_forms.KINDS.update(KINDS)
    engine = new_engine(trained.model)
    batch = (trained.x, trained.y)
    engine.build(batch)
    placed = engine.backend._placed(batch)
    print(f"\n{name}: built in {time.perf_counter() - begin:.0f} s", flush=True)
    found: dict[str, Any] = {"step_ms": {}, "eager_ms": {}, "reasons": {}, "groups": {}, "operations": {}}
    found["kernels"] = {}
    longest = 0.0
    for variant, kinds in VARIANTS.items():
        if time.perf_counter() - begin + longest > seconds:
            print(f"  {variant:22s} not in the time that is left", flush=True)
            continue
        own = time.perf_counter()
        torch_forms.KINDS.clear()
        torch_forms.KINDS.update(kinds)
        measure_variant(variant, engine, placed, found)
        longest = max(longest, time.perf_counter() - own)
    torch_forms.KINDS.update(KINDS)
    for title in ("groups", "operations", "kernels"):
        print_table(title, found[title])
    print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return found


def new_engine(model: keras.Model) -> Any:
    """Returns an engine for a compiled model."""
    if GPU:
        return create_engine(es.CompiledTask(model), model, model.optimizer)
    from tests.engine.operation_list import recording_engine

    return recording_engine(es.CompiledTask(model), model, model.optimizer)


def measure_variant(variant: str, engine: Any, placed: Any, found: dict[str, Any]) -> None:
    """Adds the figures of a variant, and prints a line."""
    if variant != "all":  # that is what the engine was built with
        engine.backend._recorded_steps.clear()
        engine.backend._reasons.clear()
    step = engine.backend._recorded("train", placed)
    if step is not None:
        found["step_ms"][variant] = milliseconds(lambda: step(placed))
    else:
        found["reasons"][variant] = engine.backend._reasons.get("train", "")

    def eager() -> None:
        with on_stream_of_graphs(), engine.steps.guarded(), own_operations():
            engine.steps.run("train", placed)

    found["eager_ms"][variant] = milliseconds(eager, rounds=1)
    if variant in PROFILED:
        found["operations"][variant], found["groups"][variant], found["kernels"][variant] = profiled(eager)
    shown = f"{found['step_ms'][variant]:8.2f} ms" if step is not None else f"eager: {found['reasons'][variant]}"
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:6.1f} GiB" if GPU else ""
    print(f"  {variant:22s} {shown}   eagerly {found['eager_ms'][variant]:8.2f} ms {memory}", flush=True)
    if GPU:
        torch.cuda.reset_peak_memory_stats()


def on_stream_of_graphs() -> contextlib.AbstractContextManager[Any]:
    """Where graphs are recorded: a variable that was used on another stream before could not be recorded."""
    return torch.cuda.stream(CudaGraph._stream) if GPU else contextlib.nullcontext()


def milliseconds(step: Callable[[], Any], rounds: int = 3) -> float:
    """Returns the time of a step, the median of some rounds of about half a second."""
    step()
    finish()
    begin = time.perf_counter()
    step()
    finish()
    count = max(1, min(100, int(0.5 / (time.perf_counter() - begin)))) if GPU else 1
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        finish()
        times.append((time.perf_counter() - begin) / count)
    return 1000 * statistics.median(times)


def finish() -> None:
    """Waits for the device."""
    if GPU:
        torch.cuda.synchronize()


Times = dict[str, tuple[int, float]]
"""How often something ran, and its ms in all, by name."""


def profiled(step: Callable[[], Any]) -> tuple[Times, Times, Times]:
    """Returns the times on the device of the operations of a step, of groups of kernels, and of kernels."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if GPU else []
    with torch.profiler.profile(activities=activities) as profile:
        step()
        finish()
    operations: Times = {}
    groups: Times = {}
    kernels: Times = {}
    for event in profile.key_averages():
        ms = (event.self_device_time_total if GPU else event.self_cpu_time_total) / 1000
        if event.device_type != torch.autograd.DeviceType.CPU:
            group, name = group_of(event.key), short(event.key)
            for times, key in ((groups, group), (kernels, f"{group}: {name}")):
                count, before = times.get(key, (0, 0.0))
                times[key] = (count + event.count, before + ms)
        elif event.key.startswith("aten::"):
            operations[event.key] = (event.count, ms)
    return operations, groups, kernels


def short(kernel: str) -> str:
    """Returns what tells kernels of PyTorch's templates apart: the first name, and the functor inside of it."""
    plain = re.sub(r"void |at::native::|\(anonymous namespace\)::|at::|c10::", "", kernel)
    functor = re.search(r"(\w*(?:Functor|_kernel_cuda|_kernel_impl|Ops?)\w*)", plain.partition("<")[2])
    return plain.partition("<")[0][:60] + (f" {functor[1]}"[:40] if functor else "")


def group_of(kernel: str) -> str:
    """Returns the group of a kernel by its name."""
    return next((group for group, names in GROUPS.items() if re.search(names, kernel, re.IGNORECASE)), "other")


def print_table(title: str, by_variant: dict[str, Times], rows: int = 20) -> None:
    """Prints times and counts by name, side by side for the variants."""
    if not any(by_variant.values()):
        return
    names = dict.fromkeys(name for times in by_variant.values() for name in times)
    cost = {name: max(times.get(name, (0, 0.0))[1] for times in by_variant.values()) for name in names}
    print(f"  {title + ', ms and how often':90s}" + "".join(f"{variant:>20s}" for variant in by_variant))
    for name in sorted(names, key=lambda name: -cost[name])[:rows]:
        cells = [times.get(name, (0, 0.0)) for times in by_variant.values()]
        print(f"  {name[:90]:90s}" + "".join(f"{ms:12.3f} {count:7d}" for count, ms in cells))
    total = [(sum(n for n, _ in times.values()), sum(ms for _, ms in times.values())) for times in by_variant.values()]
    print(f"  {'all':90s}" + "".join(f"{ms:12.3f} {count:7d}" for count, ms in total), flush=True)


if __name__ == "__main__":
    main()
