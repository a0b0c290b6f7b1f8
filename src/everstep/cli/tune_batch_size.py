"""`everstep tune batch-size`."""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.ending import print_last
from everstep.cli.numbers import real_number, whole_number
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved, resolve
from everstep.cli.running import load_backend
from everstep.config import get_task
from everstep.errors import TrainingError, UsageError
from everstep.experiment_config import check_mode
from everstep.quick.batch_size import gigabytes, in_child, spelled
from everstep.quick.child import end_with_parent, free_bytes
from everstep.quick.sizes import Tried, fastest, largest, search

Mode = Annotated[str, typer.Option(metavar="MODE", help="As for train; with train, nothing is evaluated.")]
Start = Annotated[str | None, typer.Option(metavar="N", help="The first size; by default the configured one.")]
Most = Annotated[str, typer.Option("--max", metavar="N", help="The largest size to try.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="GB", help="Memory of this machine that a try may take; by default what is free now."),
]
Only = Annotated[str | None, typer.Option(metavar="N", help="Try this size alone, in this very process.")]

_MOST = 2**30
_KEY = "task.train_data.global_batch_size"
_ROW = "{:>10}  {:<5} {:>10}  {:>9}  {}"


@options.takes_request("overfit_batches", "sanity_eval", "limit_train", "limit_eval")
def batch_size(
    context: typer.Context,
    request: options.Request,
    mode: Mode = "train_and_eval",
    start: Start = None,
    most: Most = "65536",
    memory: Memory = None,
    only: Only = None,
) -> None:
    """Find the largest batch that fits, and the fastest.

    Sizes are doubled until one does not fit, then tried between the last two. Each is tried in a process of its own,
    with some real training steps and an evaluation step. What is found is printed; nothing is set, and nothing is
    written.
    """
    bound, largest_size = _bound(memory), _size("--max", most)
    first, single = start and _size("--start", start), only and _size("--only", only)
    _check_trains(mode)
    resolved = resolve(request)
    if single:
        end_with_parent()
        print_last(spelled(_try_here(resolved, single, "eval" in mode)))
        return
    first = first or resolved.params.task.train_data.global_batch_size
    if first > largest_size:
        raise UsageError(f"--max {most}: the first size to try is {first}; give a larger --max, or a smaller --start")
    attempt = in_child(lambda size: _again(context.obj, size), bound)
    print_last(redaction.text(_advice(_told_as_it_goes(search(first, largest_size, attempt)))))


def _size(option: str, text: str) -> int:
    return whole_number(option, text, 1, _MOST)


def _check_trains(mode: str) -> None:
    check_mode(mode)
    if "train" not in mode:
        raise UsageError(f"--mode {mode}: nothing is trained then; choose a mode that trains")


def _bound(memory: str | None) -> int | None:
    if memory is not None:
        return int(1e9 * real_number("--memory", memory, 0, 1e6))
    free = free_bytes()
    return None if free is None else int(0.9 * free)


def _try_here(resolved: Resolved, size: int, evaluate: bool) -> Tried:
    with quiet():
        module: Any = load_backend(resolved.params.runtime.seed, "everstep.quick.one_size")
    params = module.with_size(resolved.params, size)
    with tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder:
        tried: Tried = module.try_size(params, get_task(params.task, logging_dir=folder), size, evaluate)
    return tried


def _again(words: Sequence[str], size: int) -> list[str]:
    """Returns this very command line, for one size: of an option given twice, the last counts."""
    end = words.index("--") if "--" in words else len(words)
    return [sys.executable, "-m", "everstep", *words[:end], f"--only={size}", *words[end:]]


def _told_as_it_goes(tries: Iterator[Tried]) -> list[Tried]:
    """Prints a row for each try when it is over."""
    print_last(_ROW.format("batch size", "fits", "samples/s", "memory", "").rstrip())
    told = []
    with _ended_by_signals():
        for tried in tries:
            print_last(redaction.text(_row(tried)))
            told.append(tried)
    return told


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A request to end raises, so that the process which tries a size is ended as well."""

    def leave(number: int, frame: Any) -> None:
        print(f"everstep: {signal.Signals(number).name}: the search is not finished; nothing was set", file=sys.stderr)
        raise typer.Exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _row(tried: Tried) -> str:
    rate = "" if tried.samples_per_second is None else f"{tried.samples_per_second:,.0f}"
    memory = "" if tried.peak_bytes is None else gigabytes(tried.peak_bytes)
    return _ROW.format(tried.size, "yes" if tried.fits else "no", rate, memory, tried.note).rstrip()


def _advice(tries: Sequence[Tried]) -> str:
    most, best = largest(tries), fastest(tries)
    if most is None or best is None:
        raise TrainingError(f"no batch size fits, not even {tries[-1].size}: use a smaller model, or more memory")
    bounded = "" if any(not one.fits for one in tries) else ", and larger ones were not tried"
    lines = [
        f"largest that fits: {most.size}{bounded}; fastest: {best.size}",
        f"use {_KEY}={best.size}; nothing was set",
    ]
    if best.size > 0.9 * most.size and not bounded:
        lines.append("that is close to the largest: a long run may need some more, so leave a tenth or so")
    return "\n".join(lines)
