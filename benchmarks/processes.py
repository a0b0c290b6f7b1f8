"""Several processes that train one run.

What it costs a single process to take the way of several: the coordination service with its heartbeats, the lengths of
calls that it publishes, and the agreement before each call. Beside it the same steps without. Both take turns every
half second, and a round is the median of many turns: the speed of a machine changes by more than what is measured.

And weak scaling: 1, 2 and 4 processes on this machine, each with as many samples in a step. They share its cores: where
one process uses all of them already, more cannot be faster, and what is lost is what dividing the work costs.
"""

import concurrent.futures
import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial

from benchmarks.contenders import ContenderProcess, alternate, processes
from benchmarks.options import Options
from benchmarks.results import OURS, Case
from everstep import gang
from everstep.launch.child_gang import reserve_port

NETWORK, BATCH = "784-512-10, batch 128", 128
ALONE = "without coordinates"
SIZES = (1, 2, 4)
TURNS, TURN_STEPS = 10, 200
"""The turns of a round, and the steps of one."""
WARM, STEPS = 200, 200
"""Of several processes: the steps of a round before those that count, and those that do."""


def run(options: Options) -> Iterator[Case]:
    """Yields the cost of the way of several for each backend, then the samples per second of several processes."""
    for backend in options.installed_backends:
        start = partial(ContenderProcess, "benchmarks.process_loop", backend, device=options.device)
        with processes(alone=start(), service=start("--service")) as both:
            call = {"network": NETWORK, "steps": options.steps or TURN_STEPS}
            contenders = {
                ALONE: partial(both["alone"].ask, "window", **call),
                OURS: partial(both["service"].ask, "window", **call),
            }
            alternate(contenders, 1)  # compiles
            turns = [alternate(contenders, TURNS) for _ in range(options.rounds)]
            values = {name: [statistics.median(one[name]) for one in turns] for name in contenders}
            yield Case(f"{NETWORK}, {backend}", "steps/s", values)
    for backend in options.installed_backends:
        gangs = {size: _start(backend, size, options.device) for size in SIZES}
        with processes(**{f"{size}-{rank}": one for size, all_ in gangs.items() for rank, one in enumerate(all_)}):
            rounds = {
                size: partial(_round, members, BATCH * size, WARM, options.steps or STEPS)
                for size, members in gangs.items()
            }
            rates = alternate({str(size): each for size, each in rounds.items()}, options.rounds)
        for size in SIZES:
            samples = [rate * BATCH * size for rate in rates[str(size)]]
            count = f"{size} process{'es' if size > 1 else ''}"
            yield Case(f"{BATCH} samples per process, {backend}, {count}", "samples/s", {OURS: samples})


def _start(backend: str, size: int, device: bool) -> list[ContenderProcess]:
    """Starts the processes of a run; they meet before they answer."""
    with reserve_port("127.0.0.1") as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    members = []
    for rank in range(size):
        coordinates = {gang.COORDINATOR: address, gang.PROCESS_ID: str(rank), gang.NUM_PROCESSES: str(size)}
        os.environ |= coordinates
        members.append(ContenderProcess("benchmarks.process_loop", backend, device=device))
        for name in coordinates:
            del os.environ[name]
    return members


def _round(members: list[ContenderProcess], batch: int, warm: int, steps: int) -> float:
    """Has all processes of a run train it once; returns the steps per second that the first one has measured."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(members)) as threads:
        call = {"network": NETWORK, "batch": batch, "warm": warm, "steps": steps, "directory": f"{folder}/run"}
        return float(list(threads.map(lambda one: one.ask("train", **call), members))[0])
