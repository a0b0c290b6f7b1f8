"""Runs suites by name: `python -m benchmarks mlp [--device] [--rounds 5] [--json results/mlp.json]`.

Peers and ours take turns. Each case prints the median and the interquartile range of the rounds, and our ratio to each
peer. The exit code is 1 if a ratio is below its bar (`bars.py`). `bars` stands for all suites that have some.
"""

import argparse
import math
from pathlib import Path

from benchmarks import bars, environments, plot, suites, zoo
from benchmarks.options import BACKENDS, Options
from benchmarks.results import new_results, show


def main() -> int:
    """Parses the command line and runs the suites."""
    listed = "\n".join(f"  {name:14}{(suites.SUITES | suites.PROGRAMS)[name]}" for name in suites.names())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"suites:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="+", metavar="SUITE", choices=[*suites.names(), "bars"])
    parser.add_argument("--device", action="store_true", help="use the accelerator; otherwise only the CPU")
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default 5)")
    parser.add_argument("--steps", type=int, help="steps of a round that count; by default the suite's own number")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--large", action="store_true", help="run the largest sizes as well")
    parser.add_argument("--workers", type=int, help="threads or processes that read data, in the suite input")
    parser.add_argument("--models", nargs="+", default=(), choices=zoo.MODELS, metavar="MODEL", help="of the zoo; all")
    parser.add_argument("--contenders", nargs="+", default=(), choices=zoo.NAMES, metavar="NAME", help="of the zoo")
    parser.add_argument("--resume", action="store_true", help="keep finished processes of the zoo, beside --json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when the zoo starts no further process")
    parser.add_argument("--json", type=Path, help="where to write the results; a folder for several suites")
    parser.add_argument("--plot", type=Path, help="where to draw them, .svg or .png; a folder for several suites")
    parser.add_argument("--create-environments", action="store_true", help="install the peers Orbit and Lightning")
    arguments = parser.parse_args()
    if arguments.create_environments:
        for peer in environments.PEERS:
            print(f"{peer}: {environments.create(peer)}")
    zoo_file = arguments.json
    if zoo_file is not None and zoo_file.suffix != ".json":
        zoo_file /= "zoo.json"
    options = Options(
        rounds=arguments.rounds,
        steps=arguments.steps,
        backends=tuple(arguments.backends),
        device=arguments.device,
        large=arguments.large,
        workers=arguments.workers,
        models=tuple(arguments.models),
        contenders=tuple(arguments.contenders),
        json=zoo_file,
        resume=arguments.resume,
        minutes=arguments.minutes,
    )
    wanted = [one for name in arguments.suites for one in (bars.suites_with_bars() if name == "bars" else [name])]
    below: list[str] = []
    for name in dict.fromkeys(wanted):
        print(f"== {name}", flush=True)
        results = new_results(name, [], options.rounds, options.device)
        for case in suites.run(name, options):
            show(case)
            results.cases.append(case)
            if arguments.json:  # after every case: a suite that is stopped keeps what it has
                results.write(arguments.json / f"{name}.json" if arguments.json.suffix != ".json" else arguments.json)
        if arguments.plot:
            plot.draw(results, arguments.plot / f"{name}.svg" if not arguments.plot.suffix else arguments.plot)
        below += bars.failures(results)
    return 1 if below else 0


if __name__ == "__main__":
    raise SystemExit(main())
