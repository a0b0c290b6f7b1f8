"""`everstep tune learning-rate`."""

import math
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep import redaction, storage
from everstep.cli import options
from everstep.cli.ending import print_last
from everstep.cli.numbers import real_number, whole_number
from everstep.cli.output import aligned
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved, resolve
from everstep.cli.running import load_backend
from everstep.config import get_task
from everstep.errors import UsageError
from everstep.quick.drawing import draw, require_matplotlib
from everstep.quick.rates import RangeTest, rounded

Least = Annotated[str, typer.Option("--min", metavar="RATE", help="The first learning rate.")]
Most = Annotated[str, typer.Option("--max", metavar="RATE", help="The last one.")]
Steps = Annotated[str, typer.Option(metavar="N", help="How many to try, one at each step.")]
Out = Annotated[str, typer.Option(metavar="FILE", help="The picture, .png or .svg; a table is written beside it.")]


@options.takes_request("overfit_batches", "sanity_eval", "limit_eval")
def learning_rate(
    request: options.Request,
    least: Least = "1e-7",
    most: Most = "10",
    steps: Steps = "100",
    out: Out = "learning-rate.png",
) -> None:
    """Try growing learning rates on the first steps.

    The learning rate grows by the same factor from step to step, from the initial weights on, until the loss diverges.
    What is printed, drawn and listed is where the loss falls fastest; nothing is set.
    """
    bounds, count = _range(least, most), whole_number("--steps", steps, 10, 100_000)
    picture = _picture(out)
    resolved = resolve(request)
    test = _range_test(resolved, *bounds, count)
    _write(test, picture, resolved.experiment)
    print_last(redaction.text(_found(test, picture, resolved.params.trainer.optimizer_config.learning_rate)))


def _range(least: str, most: str) -> tuple[float, float]:
    bounds = real_number("--min", least, 0, math.inf), real_number("--max", most, 0, math.inf)
    if not bounds[0] < bounds[1]:
        raise UsageError(f"--min {least} and --max {most}: the first learning rate must be below the last")
    return bounds


def _picture(out: str) -> Path:
    """Returns where to write; refuses what cannot be written before anything is tried."""
    path = Path(out)
    if path.suffix not in (".png", ".svg", ".csv"):
        raise UsageError(f"--out: received {out!r}, expected a file that ends in .png, .svg or .csv")
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--out: received {out!r}, but there is no directory {str(path.parent)!r} to write it to")
    if path.suffix != ".csv":
        require_matplotlib()
    return path


def _range_test(resolved: Resolved, least: float, most: float, steps: int) -> RangeTest:
    with quiet():
        module: Any = load_backend(resolved.params.runtime.seed, "everstep.quick.learning_rate")
    with tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder:
        task = get_task(resolved.params.task, logging_dir=folder)
        test: RangeTest = module.range_test(resolved.params, task, least, most, steps)
    return test


def _write(test: RangeTest, picture: Path, title: str) -> None:
    if picture.suffix != ".csv":
        storage.write_bytes(picture, draw(test, title, picture.suffix[1:]))
    storage.write_text(picture.with_suffix(".csv"), test.table())


def _found(test: RangeTest, picture: Path, config: Any) -> str:
    steepest = test.steepest()
    rate = None if steepest is None else rounded(test.rates[steepest])
    ended = f"diverges at {rounded(test.rates[-1]):g}" if test.diverged else "does not diverge"
    nowhere = "the loss does not fall beyond its noise: try more --steps"
    rows = [
        ("steepest descent", nowhere if rate is None else f"{rate:g}"),
        ("loss", f"{ended}, after {len(test.rates)} steps"),
        *([("picture", str(picture))] if picture.suffix != ".csv" else []),
        ("table", str(picture.with_suffix(".csv"))),
    ]
    use = [] if rate is None else [f"use {_rate_key(config)}={rate:g}; nothing was set"]
    return "\n".join([aligned(rows), *use])


def _rate_key(config: Any) -> str:
    """Returns the key that sets the learning rate, or its highest value, in the schedule that is configured."""
    names = ("learning_rate", "initial_learning_rate")
    named = [name for name in names if config.type is not None and name in config.get().as_dict()]
    where = "trainer.optimizer_config.learning_rate"
    return f"{where}.{config.type}.{named[0]}" if named else f"a schedule of {where} whose highest rate"
