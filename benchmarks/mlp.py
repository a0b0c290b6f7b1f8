"""Small dense networks, which are bound by Python: 784-32-10 at batch 32, and 784-512-10 at batch 128.

Contenders, on each backend: `fit` at 1 and at 100 steps per execution, Everstep with console, TensorBoard,
`history.csv` and a window of 100 steps, and a hand-written compiled loop. On TensorFlow also Orbit, on PyTorch also
Lightning, in environments of their own. Compilation is not counted for any of them.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks import environments
from benchmarks.contenders import ContenderProcess, alternate, processes
from benchmarks.options import Options, fit_settings
from benchmarks.results import OURS, Case

NETWORKS = {"784-32-10, batch 32": (32, 32, 2400), "784-512-10, batch 128": (128, 512, 600)}
"""Batch size, hidden units, and steps of a round."""

PEERS = {"tensorflow": ("Orbit", "orbit"), "torch": ("Lightning", "lightning")}
"""By backend: the loop that people use there, and its environment."""


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each backend and network."""
    for backend in options.installed_backends:
        peer_name, peer = PEERS.get(backend, ("", ""))
        python = environments.interpreter(peer) if peer else None
        if peer and python is None:
            print(f"{peer_name} is left out: --create-environments installs it", flush=True)
        own = ContenderProcess("benchmarks.keras_loops", backend, device=options.device)
        other = python and ContenderProcess(f"benchmarks.{peer}_loop", python=python, device=options.device)
        with processes(own=own, other=other or None):
            for network, (batch, hidden, steps) in NETWORKS.items():
                call = {"network": network, "steps": options.steps or steps}
                dense = {"batch": batch, "hidden": hidden, "steps": options.steps or steps}
                contenders = {
                    **{
                        title: partial(own.ask, "fit", per_execution=number, **call)
                        for title, number in fit_settings(backend).items()
                    },
                    OURS: partial(own.ask, "experiment", everything=False, **call),
                    "hand-written": partial(own.ask, "hand", **call),
                }
                if other:
                    contenders[peer_name] = partial(other.ask, "train", **dense)
                yield Case(f"{network}, {backend}", "steps/s", alternate(contenders, options.rounds))
