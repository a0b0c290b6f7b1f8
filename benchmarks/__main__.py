"""Runs a benchmark by name: `python -m benchmarks loop [--rounds 5]`."""

import argparse

from benchmarks import loop

BENCHMARKS = {"loop": loop.main}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default 5)")
    parser.add_argument("--backends", nargs="+", default=["jax", "tensorflow"], help="also: torch")
    arguments = parser.parse_args()
    return BENCHMARKS[arguments.name](arguments.rounds, arguments.backends)


if __name__ == "__main__":
    raise SystemExit(main())
