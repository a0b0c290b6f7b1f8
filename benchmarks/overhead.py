"""What everything costs that a run does beside its steps.

Everything on: `run_experiment` with console, TensorBoard, `history.csv`, metrics as JSON lines, figures of the machine
every five seconds, and checkpoints. Everything off: the trainer alone, windows of 100 steps whose logs are read.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks.contenders import ContenderProcess, alternate, processes
from benchmarks.options import Options
from benchmarks.results import OURS, Case

NETWORKS = {"784-512-10, batch 128": 1200}


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each backend."""
    for backend in options.installed_backends:
        own = ContenderProcess("benchmarks.keras_loops", backend, device=options.device)
        with processes(own=own):
            for network, steps in NETWORKS.items():
                call = {"network": network, "steps": options.steps or steps}
                contenders = {
                    "everything off": partial(own.ask, "bare", **call),
                    OURS: partial(own.ask, "experiment", **call),
                }
                yield Case(f"{network}, {backend}", "steps/s", alternate(contenders, options.rounds))
