"""The ratios that must hold: how many times as good as a peer we are at least. `make bench` fails below one of them.

Only ratios of contenders that take turns on one machine are here, and exponents: they do not depend on its speed.
"""

from benchmarks import growth
from benchmarks.options import BACKENDS
from benchmarks.results import Results
from benchmarks.short_fit import CALLS, FIT, MODELS, case_name

BARS: dict[tuple[str, str], dict[str, float]] = {
    ("mlp", "784-32-10, batch 32, jax"): {"fit": 3.0, "fit, 100 per execution": 1.5, "hand-written": 0.95},
    ("mlp", "784-32-10, batch 32, tensorflow"): {"fit": 2.0, "fit, 100 per execution": 1.5, "hand-written": 0.95},
    ("mlp", "784-32-10, batch 32, torch"): {"fit": 1.0, "hand-written": 0.85},
    ("mlp", "784-512-10, batch 128, tensorflow"): {"fit": 1.3, "Orbit": 1.0},
    **{
        ("models", f"{network}, {backend}"): {"fit, best setting": 1.0}
        for network in ("CNN, batch 32", "LSTM, batch 32", "transformer, batch 16")
        for backend in ("jax", "tensorflow", "torch")
    },
    **{
        ("short_fit", case_name(model, backend, which)): {FIT: 0.91}  # at most 1.1 times the seconds
        for model in MODELS
        for backend in ("jax", "tensorflow", "torch")
        for which in CALLS
    },
    **{("overhead", f"784-512-10, batch 128, {name}"): {"everything off": 0.95} for name in ("jax", "tensorflow")},
    **{("processes", f"784-512-10, batch 128, {name}"): {"without coordinates": 0.97} for name in BACKENDS},
    ("input", "TFRecord of PNG images"): {"tf.data": 0.9},
    ("input", "ArrayRecord of JPEG images"): {"Grain": 0.85},
    **{
        ("growth", growth.start_name(count, model, backend)): {growth.FIT: 0.33}  # at most 3 times the CPU seconds
        for count in (1000, 10_000)
        for model in growth.MODELS
        for backend in BACKENDS
    },
}
"""By suite and case: the least ratio to each peer."""

EXPONENTS: dict[tuple[str, str], float] = {("growth", series): growth.WORST for series in growth.PARTS.values()}
"""By suite and curve: the largest exponent of its last decade."""


def suites_with_bars() -> list[str]:
    """Returns the suites that have bars, each once."""
    return list(dict.fromkeys(suite for suite, _ in BARS))


def failures(results: Results) -> list[str]:
    """Returns a line for every ratio below its bar, and every exponent above; prints all of them."""
    below = []
    for case in results.cases:
        for peer, least in BARS.get((results.suite, case.name), {}).items():
            if peer not in case.values:
                continue
            found = case.ratio(peer)
            line = f"{results.suite}: {case.name}: {found:.2f} times {peer}, bar {least}"
            print(f"{'passed' if found >= least else 'NOT PASSED'}  {line}")
            below += [line] if found < least else []
        most, slope = EXPONENTS.get((results.suite, case.series)), case.notes.get("exponent")
        if most is not None and slope is not None:
            line = f"{results.suite}: {case.series}: exponent {slope}, bar {most}"
            print(f"{'passed' if slope <= most else 'NOT PASSED'}  {line}")
            below += [line] if slope > most else []
    return below
