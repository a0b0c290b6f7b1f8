"""A CNN, an LSTM and a small transformer: `everstep.fit` beside `fit` at 1 and at 10 steps per execution."""

from collections.abc import Iterator
from functools import partial

from benchmarks.contenders import ContenderProcess, alternate, processes
from benchmarks.options import Options, fit_settings
from benchmarks.results import OURS, Case

NETWORKS = ("CNN, batch 32", "LSTM, batch 32", "transformer, batch 16")
STEPS = 200
PER_EXECUTION = 10  # at 100, Keras compiles for too long on JAX
BEST = "fit, best setting"


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each backend and network; the best setting of `fit` is the better one of every round."""
    for backend in options.installed_backends:
        own = ContenderProcess("benchmarks.keras_loops", backend, device=options.device)
        with processes(own=own):
            for network in NETWORKS:
                call = {"network": network, "steps": options.steps or STEPS}
                contenders = {
                    **{
                        title: partial(own.ask, "fit", per_execution=number, **call)
                        for title, number in fit_settings(backend, PER_EXECUTION).items()
                    },
                    OURS: partial(own.ask, "fit", ours=True, **call),
                }
                values = alternate(contenders, options.rounds)
                settings = [values[name] for name in fit_settings(backend, PER_EXECUTION)]
                values[BEST] = [max(of_round) for of_round in zip(*settings, strict=True)]
                yield Case(f"{network}, {backend}", "steps/s", values)
