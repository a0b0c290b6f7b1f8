"""`everstep tune`: try batch sizes or learning rates; nothing is set."""

import math
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from everstep import Mode, get_task, storage
from everstep.cli import Resolved, aligned, load_backend, new_app, options, print_last, quiet, repeated_command, resolve
from everstep.errors import TrainingError, UsageError
from everstep.run import signals_handled
from everstep.tuner import (
    KEY,
    RangeTest,
    Tried,
    draw,
    end_with_parent,
    fastest,
    free_bytes,
    gigabytes,
    largest,
    require_matplotlib,
    rounded,
    search,
    try_in_subprocess,
)

app = new_app(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep tune learning-rate mnist/mlp --backend jax",
)


@app.callback()
def tune() -> None:
    """Find a batch size or a learning rate; nothing is set."""


ModeOption = Annotated[str, typer.Option(metavar="MODE", help="As for train; with train, nothing is evaluated.")]
Start = Annotated[str | None, typer.Option(metavar="N", help="The first size; by default the configured one.")]
MaxSize = Annotated[str, typer.Option("--max", metavar="N", help="The largest size to try.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="GB", help="Memory of this machine that a try may take; by default what is free now."),
]
Only = Annotated[str | None, typer.Option(metavar="N", help="Try only this size, in this process.")]

_ROW = "{:>10}  {:<5} {:>10}  {:>9}  {}"


@app.command("batch-size", epilog="Example: everstep tune batch-size mnist/cnn --max 4096 --memory 8")
@options.takes_request("overfit_batches", "sanity_eval", "limit_train", "limit_eval")
def batch_size(
    context: typer.Context,
    request: options.ExperimentRequest,
    mode: ModeOption = "train_and_eval",
    start: Start = None,
    most: MaxSize = "65536",
    memory: Memory = None,
    only: Only = None,
) -> None:
    """Find the largest batch that fits, and the fastest.

    Sizes are doubled until one does not fit, then tried between the last two. Each size runs in its own subprocess,
    with some real training steps and an evaluation step. The result is printed; nothing is set or written.
    """
    max_bytes, largest_size = _max_bytes(memory), _size("--max", most)
    first, single = start and _size("--start", start), only and _size("--only", only)
    Mode(mode)
    if "train" not in mode:
        raise UsageError("nothing is trained then", key="--mode", received=mode, remedy="choose a mode that trains")
    resolved = resolve(request)
    if single:
        end_with_parent()
        print_last(_try_here(resolved, single, "eval" in mode).to_line())
        return
    first = first or resolved.params.task.train_data.global_batch_size
    if first > largest_size:
        raise UsageError(
            f"is below the first size, {first}",
            key="--max",
            received=largest_size,
            remedy="give a larger --max, or a smaller --start",
        )

    def attempt(size: int) -> Tried:
        return try_in_subprocess(size, repeated_command(context.obj, f"--only={size}"), max_bytes)

    print_last(_advice(_print_rows(search(first, largest_size, attempt))))


def _size(option: str, text: str) -> int:
    return options.whole_number(option, text, 1, 2**30)


def _max_bytes(memory: str | None) -> int | None:
    if memory is not None:
        return int(1e9 * options.real_number("--memory", memory, 0, 1e6))
    free = free_bytes()
    return None if free is None else int(0.9 * free)


def _try_here(resolved: Resolved, size: int, evaluate: bool) -> Tried:
    with quiet():
        from everstep.tuner import try_size, with_size

        load_backend(resolved.params.runtime.seed)
    params = with_size(resolved.params, size)
    with tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder:
        return try_size(params, get_task(params.task, logging_dir=folder), size, evaluate)


def _print_rows(tries: Iterator[Tried]) -> list[Tried]:
    """Prints a row for each try as soon as it ends; returns all of them."""
    print_last(_ROW.format("batch size", "fits", "samples/s", "memory", "").rstrip())
    done = []
    with signals_handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), _leave):
        for tried in tries:
            print_last(_tried_row(tried))
            done.append(tried)
    return done


def _leave(number: int, frame: Any) -> NoReturn:
    """Ends the search, and the subprocess that tries a size with it."""
    print(f"everstep: {signal.Signals(number).name}: the search is not finished; nothing was set", file=sys.stderr)
    raise typer.Exit(128 + number)


def _tried_row(tried: Tried) -> str:
    rate = "" if tried.samples_per_second is None else f"{tried.samples_per_second:,.0f}"
    memory = "" if tried.peak_bytes is None else gigabytes(tried.peak_bytes)
    return _ROW.format(tried.size, "yes" if tried.fits else "no", rate, memory, tried.note).rstrip()


def _advice(tries: Sequence[Tried]) -> str:
    most, best = largest(tries), fastest(tries)
    if most is None or best is None:
        raise TrainingError(
            "no batch size fits", key=KEY, received=tries[-1].size, remedy="use a smaller model, or more memory"
        )
    bounded = "" if any(not one.fits for one in tries) else ", and larger ones were not tried"
    lines = [
        f"largest that fits: {most.size}{bounded}; fastest: {best.size}",
        f"use {KEY}={best.size}; nothing was set",
    ]
    if best.size > 0.9 * most.size and not bounded:
        lines.append("that is close to the largest: a long run may need some more, so leave a tenth or so")
    return "\n".join(lines)


MinRate = Annotated[str, typer.Option("--min", metavar="RATE", help="The first learning rate.")]
MaxRate = Annotated[str, typer.Option("--max", metavar="RATE", help="The last one.")]
Steps = Annotated[str, typer.Option(metavar="N", help="How many to try, one at each step.")]
Out = Annotated[str, typer.Option(metavar="FILE", help="The picture, .png or .svg; a table is written beside it.")]


@app.command("learning-rate", epilog="Example: everstep tune learning-rate mnist/mlp --out rates.png")
@options.takes_request("overfit_batches", "sanity_eval", "limit_eval")
def learning_rate(
    request: options.ExperimentRequest,
    least: MinRate = "1e-7",
    most: MaxRate = "10",
    steps: Steps = "100",
    out: Out = "learning-rate.png",
) -> None:
    """Try growing learning rates on the first steps.

    The learning rate grows by the same factor from step to step, from the initial weights on, until the loss diverges.
    What is printed, drawn and listed is where the loss falls fastest; nothing is set.
    """
    bounds, count = _range(least, most), options.whole_number("--steps", steps, 10, 100_000)
    picture = _picture(out)
    resolved = resolve(request)
    test = _range_test(resolved, *bounds, count)
    if picture.suffix != ".csv":
        storage.write_bytes(picture, draw(test, resolved.experiment, picture.suffix[1:]))
    storage.write_text(picture.with_suffix(".csv"), test.table())
    print_last(_found(test, picture, resolved.params.trainer.optimizer_config.learning_rate))


def _range(least: str, most: str) -> tuple[float, float]:
    bounds = options.real_number("--min", least, 0, math.inf), options.real_number("--max", most, 0, math.inf)
    if not bounds[0] < bounds[1]:
        raise UsageError(f"must be below --max {most}", key="--min", received=least)
    return bounds


def _picture(out: str) -> Path:
    """Returns where to write; fails before anything is tried if that is impossible."""
    path = Path(out)
    if path.suffix not in (".png", ".svg", ".csv"):
        raise UsageError("expected a file that ends in .png, .svg or .csv", key="--out", received=out)
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"there is no directory {str(path.parent)!r} to write it to", key="--out", received=out)
    if path.suffix != ".csv":
        require_matplotlib()
    return path


def _range_test(resolved: Resolved, least: float, most: float, steps: int) -> RangeTest:
    with quiet():
        from everstep.tuner import range_test

        load_backend(resolved.params.runtime.seed)
    with tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder:
        return range_test(resolved.params, get_task(resolved.params.task, logging_dir=folder), least, most, steps)


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
