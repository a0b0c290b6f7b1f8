"""Where the seconds go from the start of a process to the first step: `everstep train mnist/mlp`, warm.

    python -m benchmarks.startup [--backends jax tensorflow torch] [--rounds 3]

Each round is a fresh process; the first one warms the file cache and is not counted. It ends after the first compiled
call. CPU seconds are printed beside those of the clock: on a busy machine they tell more. The bars, on two quiet cores:
6 seconds on JAX, 8 on TensorFlow.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

BARS = {"jax": 6.0, "tensorflow": 8.0}
LAUNCHED = "BENCHMARK_LAUNCHED"


def main() -> int:
    """Prints a table per backend and one JSON line; returns 1 where a bar is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["jax", "tensorflow"], help="also: torch")
    parser.add_argument("--rounds", type=int, default=3, help="processes that count (default 3)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        start(arguments.child)
    passed, totals = True, {}
    for backend in arguments.backends:
        rounds = [launch(backend) for _ in range(arguments.rounds + 1)][1:]
        totals[backend] = report(backend, rounds)
        passed &= totals[backend] <= BARS.get(backend, float("inf"))
    print(json.dumps({"benchmark": "startup", "seconds": totals}))
    return 0 if passed else 1


def launch(backend: str) -> dict[str, list[float]]:
    """Returns seconds and CPU seconds of each section of one start."""
    environment = {**os.environ, LAUNCHED: str(time.time()), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "benchmarks.startup", "--child", backend]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stderr)
    sections: dict[str, list[float]] = json.loads(result.stdout.splitlines()[-1])
    return sections


def report(backend: str, rounds: list[dict[str, list[float]]]) -> float:
    """Prints the medians of each section; returns the median of the totals."""
    print(f"{backend:12s} {'seconds':>8s} {'CPU':>8s}")
    for name in rounds[0]:
        clock, cpu = (statistics.median(sections[name][i] for sections in rounds) for i in range(2))
        print(f"{name:12s} {clock:8.2f} {cpu:8.2f}")
    total = round(statistics.median(sections["total"][0] for sections in rounds), 2)
    if backend in BARS:
        print(f"bar {BARS[backend]:.0f} s: {'passed' if total <= BARS[backend] else 'NOT PASSED'}\n")
    return total


# -- one start, in a process of its own --------------------------------------------------------------------------------

_sections: dict[str, list[float]] = {}  # seconds and CPU seconds by section
_begun: dict[str, tuple[float, float]] = {}  # the sections that are open, the innermost last


def start(backend: str) -> None:
    """Trains until the first step is done, prints the seconds of each section, and ends the process."""
    python = time.time() - float(os.environ[LAUNCHED])
    _sections["python"] = [python, time.process_time()]
    with section("keras"):
        from everstep.engine import backend as backends

        backends.select(backend)
        import keras  # noqa: F401
    with section("everstep"):
        from everstep import experiment
        from everstep.checkpoint import OrbaxCheckpointer
        from everstep.cli.main import main as everstep
        from everstep.engine.engine import Engine
        from everstep.loop.trainer import Trainer
        from everstep.run.attempt import Progress
        from everstep.run.record import Run

        backends.create_engine(None, None)  # imports the engine

    def first_step(hook: Any, step: int) -> None:
        _close("first step")
        known = [sum(section[i] for section in _sections.values()) for i in range(2)]
        total = [time.time() - float(os.environ[LAUNCHED]), time.process_time()]
        _sections["other"] = [total[i] - known[i] for i in range(2)]
        _sections["total"] = total
        print(json.dumps(_sections), flush=True)
        os._exit(0)

    _measure(Trainer, "_build", "data")
    _measure(Engine, "build", "tracing")
    _measure(Run, "begin", "record")
    _measure(experiment, "create_trainer", "model")
    _measure(OrbaxCheckpointer, "save", "checkpoint")
    Progress.on_call_end = first_step  # type: ignore[method-assign]
    calls = Engine.calls

    def timed_calls(*args: Any, **kwargs: Any) -> Iterator[int]:
        with section("first step"):
            yield from calls(*args, **kwargs)

    Engine.calls = timed_calls  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(everstep(["train", "mnist/mlp", "--backend", backend, "--model-dir", f"{directory}/run"]))


def _measure(owner: Any, name: str, title: str) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        with section(title):
            return function(*args, **kwargs)

    setattr(owner, name, measured)


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Adds the seconds of the block to a section, and takes them from the section around it."""
    _sections.setdefault(name, [0.0, 0.0])
    _begun[name] = time.time(), time.process_time()
    yield
    _close(name)


def _close(name: str) -> None:
    begin = _begun.pop(name)
    spent = time.time() - begin[0], time.process_time() - begin[1]
    for i in range(2):
        _sections[name][i] += spent[i]
        for around in list(_begun)[-1:]:
            _sections[around][i] -= spent[i]


if __name__ == "__main__":
    raise SystemExit(main())
