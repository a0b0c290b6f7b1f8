"""What the loop costs: MLP 784-32-10 at batch size 32, with `fit`, with ours, and with a hand-written compiled loop.

The three run alternately in one process per backend; ratios of the medians count, not absolute rates. Ours runs
with everything on: console, TensorBoard events, history.csv, a logging window of 100 steps. Compilation is not counted
for any of them. The bars: at least 3 times `fit` on JAX and 2 times on TensorFlow, and 0.85 of the hand-written loop.
On PyTorch nothing is compiled: all three run step by step, and the bar is 0.9 of `fit`.
"""

import json
import statistics
import subprocess
import sys

BARS = {"jax": (3.0, 0.85), "tensorflow": (2.0, 0.85), "torch": (0.9, 0.85)}


def main(rounds: int, backends: list[str]) -> int:
    """Runs each backend in a process of its own and prints rates, ratios and whether the bars were passed."""
    passed = True
    for backend in backends:
        command = [sys.executable, "-m", "benchmarks.loop_contenders", backend, str(rounds)]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        passed &= report(backend, json.loads(result.stdout.splitlines()[-1]))
    return 0 if passed else 1


def report(backend: str, rates: dict[str, list[float]]) -> bool:
    """Prints one backend's figures; returns whether they pass the bars."""
    median = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        shown = " ".join(f"{value:,.0f}" for value in values)
        print(f"{backend:10s} {name:5s} {median[name]:8,.0f} steps/s   ({shown})")
    over_fit, over_hand = median["ours"] / median["fit"], median["ours"] / median["hand"]
    least_fit, least_hand = BARS[backend]
    passed = over_fit >= least_fit and over_hand >= least_hand
    print(
        f"{backend:10s} ours / fit {over_fit:.2f} (bar {least_fit})   ours / hand {over_hand:.2f} (bar {least_hand})   "
        f"{'passed' if passed else 'NOT PASSED'}\n"
    )
    return passed
