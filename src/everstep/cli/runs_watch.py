"""`everstep runs watch`: one run or several, read again and again until they end."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.checkpoint import CHECKPOINTS, complete_checkpoints
from everstep.checkpoint.remote import is_url
from everstep.cli import completion
from everstep.cli.remote_runs import RemoteRun, remote_runs
from everstep.errors import UsageError
from everstep.run import (
    Overview,
    goodput,
    last_beat,
    listable,
    loop_directories,
    named_run,
    newest_job,
    overview,
    read,
    runs_like,
    seconds,
    stopped_early,
)
from everstep.tracking import (
    DisplayStatus,
    HistoryReader,
    Line,
    LiveMetrics,
    LiveRate,
    LiveScreen,
    LogKind,
    Style,
    bar,
    can_draw,
    clock_time,
    count,
    cropped,
    frame,
    in_ascii,
    joined,
    line_of,
    only_ascii,
    percent,
    rate_text,
    value_text,
    width_of,
)

AT_WORK = ("running", "starting", "exporting", "evaluating", "restarting", "queued")
"""The first words of the states of a run that is not over."""

_GOOD_ENDS = ("finished", "trained")
_KINDS: tuple[LogKind, ...] = ("train", "validation")


def name_of(run: Overview) -> str:
    """Returns a run's directory or URL."""
    return run.url if isinstance(run, RemoteRun) else str(run.directory)


def is_at_work(run: Overview) -> bool:
    """Returns whether a run is not over."""
    return run.state.split()[0] in AT_WORK


def ended_well(run: Overview) -> bool:
    """Returns whether a run ended successfully."""
    return run.state.split()[0] in _GOOD_ENDS


class WatchedRun:
    """Follows one run: reads what has changed, and remembers what speed needs.

    Attributes:
      run: Its newest overview.
    """

    def __init__(self) -> None:
        self._rate, self._metrics = LiveRate(), LiveMetrics()
        self._reader: HistoryReader | None = None
        self._source: tuple[Path, frozenset[str]] = Path(), frozenset()  # what the reader reads, and how
        self._pace: float | None = None

    def update(self, run: Overview) -> None:
        """Takes the run's newest overview."""
        self.run = run
        self._read_metrics()
        beat = last_beat(self._files)
        moving = run.state.split()[0] == "running" and beat is not None
        self._pace = self._rate.at(beat[1], beat[0]) if moving and beat is not None else None

    @property
    def status(self) -> DisplayStatus:
        """What the display shows."""
        run, record = self.run, self.run.record or {"attempts": []}
        attempts, state = record["attempts"], run.state
        rate = (self._pace or _overall(run)) if is_at_work(run) else None
        begun = seconds(attempts[-1]["started"]) if attempts else None
        return DisplayStatus(
            step=run.step,
            total=run.train_steps,
            epoch=record.get("epoch"),
            epochs=record.get("epochs"),
            steps_per_epoch=record.get("steps_per_epoch"),
            phase="" if state == "running" else state,
            rate=rate,
            left=self._left,
            gone=time.time() - begun if begun and is_at_work(run) else None,
            rates=self._metrics.rates if is_at_work(run) else {},
            metrics=self._metrics,
            saves=not isinstance(run, RemoteRun),  # of a run in a store only the record is fetched
            checkpoint=_newest_checkpoint(self._files / CHECKPOINTS),
            attempts=max(1, len(attempts)),
            goodput=goodput(record).ratio if attempts else None,
        )

    @property
    def _left(self) -> float | None:
        """At the pace of the last half minute; before there is one, at that of the attempt."""
        run, total = self.run, self.run.train_steps
        return (total - run.step) / self._pace if self._pace and total else run.seconds_left

    @property
    def summary(self) -> str:
        """One line: where the run is, its state, progress, speed, and last metrics."""
        status, run = self.status, self.run
        words = [name_of(run), run.state, _progress(run, status)]
        words += [percent(status.step / status.total)] if status.total and not stopped_early(run.record or {}) else []
        words += [rate_text(status.rate, "steps/s")] if status.rate is not None else []
        words += [f"{clock_time(status.left)} left"] if status.left is not None else []
        for kind in _KINDS:
            values = ((metric.name, metric.last(kind)) for metric in status.metrics.all())
            words += [f"{kind} {name} {value_text(value)}" for name, value in values if value is not None]
        return " · ".join(words)

    @property
    def news(self) -> tuple[Any, ...]:
        """What prints a line when it changes: the state, the logs, the newest checkpoint."""
        points = [(name, {kind: tuple(p) for kind, p in m.points.items()}) for name, m in self._metrics.by_name.items()]
        checkpoint = self.status.checkpoint
        return self.run.state, str(points), checkpoint and checkpoint[0]

    @property
    def _files(self) -> Path:
        """The directory that the loop trains in; of a project's run it is inside the run's."""
        inside = (path for path in loop_directories(self.run.directory)[1:] if path.is_dir())
        return next(inside, self.run.directory)

    def _read_metrics(self) -> None:
        """Reads what is new in the history; where there is none, the last logs that the record has."""
        history, record = self._files / "history.csv", self.run.record
        logs = record["metrics"] if record else {}
        own = frozenset(set(logs.get("validation") or ()) - set(logs.get("train") or ()))
        if self._reader is None or (history, own) != self._source:
            self._reader, self._source = HistoryReader(history), (history, own)
        try:
            anew, rows = self._reader.read()
        except OSError:
            self._reader, metrics = None, LiveMetrics()
            for kind in _KINDS:
                metrics.add(self.run.step, logs.get(kind) or {}, kind)
        else:
            if not anew and not rows:
                return
            metrics = LiveMetrics() if anew else self._metrics.copy()
            metrics.add_rows(rows, own)
        self._metrics = metrics  # whole: another thread draws it


def _progress(run: Overview, status: DisplayStatus) -> str:
    """Returns how far a run is, in epochs where it counts them: `epoch 14/25`."""
    if text := stopped_early(run.record or {}):
        return text
    if status.steps_per_epoch and status.epochs:
        return f"epoch {status.step / status.steps_per_epoch:.4g}/{status.epochs}"
    return f"{count(status.step)}/{count(status.total)}" if status.total else f"{count(status.step)} steps"


def _overall(run: Overview) -> float | None:
    """Returns the pace of the whole attempt, from which the time left is computed."""
    left, total = run.seconds_left, run.train_steps
    return (total - run.step) / left if left and total else None


def _newest_checkpoint(folder: Path) -> tuple[int, float | None] | None:
    """Returns the newest whole checkpoint, and its age in seconds."""
    for step, path in reversed(complete_checkpoints(folder).items()):
        with contextlib.suppress(OSError):  # removed meanwhile
            return step, max(0.0, time.time() - (path / "manifest.json").stat().st_mtime)
    return None


_PAUSE, _PAUSE_OF_MANY, _PAUSE_REMOTE = 1.0, 2.0, 10.0
_GRACE = 5.0  # a supervisor starts a run again after a moment
_BAR = 20

Watched = Annotated[
    str,
    typer.Argument(
        metavar="RUN|ROOT",
        help="A run directory, a directory of runs, or a URL.",
        autocompletion=completion.runs,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Show the runs once, and exit.")]


def watch_runs(place: Watched = "runs", once: Once = False) -> None:
    """Watch a run, or all below a directory, until they end.

    On a terminal it is drawn in place, each second; elsewhere a line is printed whenever a run logs, saves or ends.
    Exit code 0: all finished; 1: one failed, was interrupted or killed.
    """
    try:
        code = watch(place, once)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def watch(place: str, once: bool = False) -> int:
    """Shows the runs at or below a place until none is at work; returns 0 if all ended well, 1 if not.

    Args:
      place: A run directory, a directory of some, or a URL of either.
      once: Whether to show them only once.

    Raises:
      UsageError: There is no run.
    """
    watched = _Watched(place)
    with _display(watched) as show:
        while True:
            show()
            if once or watched.has_ended():
                break
            time.sleep(watched.pause)
    running = any(is_at_work(one.run) for one in watched.runs)
    return 0 if running or all(ended_well(one.run) for one in watched.runs) else 1


class _Watched:
    """The runs at a place.

    Attributes:
      runs: Each of them, as it was when last read.
      pause: Seconds until they are read again.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._by_name: dict[str, WatchedRun] = {}
        self._ended: float | None = None
        self._worked = False
        self.pause = _PAUSE
        self.update()

    @property
    def runs(self) -> list[WatchedRun]:
        return list(self._by_name.values())

    def update(self) -> None:
        """Reads all of them again."""
        found = _runs(self._place)
        self._by_name = {name_of(run): self._by_name.get(name_of(run), WatchedRun()) for run in found}
        for run in found:
            self._by_name[name_of(run)].update(run)
        queued = any(run.submission is not None and run.submission.executor != "background" for run in found)
        self.pause = _PAUSE_REMOTE if queued or is_url(self._place) else _PAUSE if len(found) == 1 else _PAUSE_OF_MANY

    def has_ended(self) -> bool:
        """Returns whether all runs are over.

        A run that has just failed gets a moment, as a supervisor may restart it.
        """
        if any(is_at_work(one.run) for one in self.runs):
            self._worked, self._ended = True, None
            return False
        self._ended = time.monotonic() if self._ended is None else self._ended
        patient = self._worked and not all(ended_well(one.run) for one in self.runs)
        return not patient or time.monotonic() - self._ended >= _GRACE


def _runs(place: str) -> Sequence[Overview]:
    found: Sequence[Overview]
    if is_url(place):
        found = remote_runs(place)
    elif (path := Path(named_run(place)) / "run.json").is_file():
        found = [Overview(path.parent, listable(read(path.parent)), newest_job(path.parent))]
    elif not path.parent.is_dir():
        raise UsageError("is not a directory with runs", key="RUN|ROOT", received=place, remedy=runs_like(place))
    else:
        found = overview(path.parent)
    if not found:
        raise UsageError("contains no runs to watch", key="RUN|ROOT", received=place)
    return found


@contextlib.contextmanager
def _display(watched: _Watched) -> Iterator[Callable[[], None]]:
    """Yields a function that reads the runs and shows them: in place on a terminal, else a line for each change."""
    out, printed = sys.stdout, dict[str, object]()

    def print_changes() -> None:
        watched.update()
        for one in watched.runs:
            if printed.get(name_of(one.run)) != one.news:
                printed[name_of(one.run)] = one.news
                print(one.summary, flush=True)

    if not can_draw(out):
        yield print_changes
        return
    plain = only_ascii(out)

    def picture(columns: int, rows: int) -> list[Line]:
        lines = _picture(watched, columns, rows, plain)
        return [in_ascii(line) for line in lines] if plain else lines

    screen = LiveScreen(out, picture)
    screen.start()
    try:
        yield watched.update
    finally:
        screen.stop()


def _picture(watched: _Watched, width: int, height: int, plain: bool) -> list[Line]:
    runs = watched.runs
    if len(runs) == 1:
        return [_title(runs[0], width), *frame(runs[0].status, width, height - 1, plain)]
    shown = runs if len(runs) <= height else runs[: height - 1]
    widest = min(max(width_of(name_of(one.run)) for one in shown), max(10, width // 3))
    lines = [_row(one, widest, width, plain) for one in shown]
    hidden = len(runs) - len(shown)
    return [*lines, *([line_of((f"and {hidden} more", Style.DIM))] if hidden else [])]


def _title(one: WatchedRun, width: int) -> Line:
    record = one.run.record or {}
    words = [str(value) for value in (record.get("name") or record.get("experiment"), record.get("backend")) if value]
    age = one.run.age
    seen = [f"seen {clock_time(age)} ago"] if age is not None else []
    beside = f"  {' · '.join([*words, *seen])}"
    return cropped(line_of((name_of(one.run), Style.STRONG), (beside, Style.DIM)), width)


def _row(one: WatchedRun, widest: int, width: int, plain: bool) -> Line:
    """Returns a run in one line: its end counts more than its beginning."""
    status, name = one.status, name_of(one.run)
    name = name if width_of(name) <= widest else f"…{name[-(widest - 1) :]}"
    style = Style.PLAIN if is_at_work(one.run) else Style.GOOD if ended_well(one.run) else Style.BAD
    padded = name + " " * (widest - width_of(name) + 2)
    line = line_of((padded, Style.STRONG), (f"{one.run.state:11s} ", style))
    if status.total:
        share = status.step / status.total
        line = joined([line, bar(share, _BAR, plain), line_of((f" {percent(min(1.0, share)):>5s}  ", Style.PLAIN))])
    words = [f"{clock_time(status.left)} left"] if status.left is not None else [f"step {count(status.step)}"]
    values = ((metric, metric.last("validation")) for metric in status.metrics.all())
    words += [f"{metric.name} {value_text(value)}" for metric, value in values if value is not None]
    return cropped(joined([line, line_of((" · ".join(words), Style.DIM))]), width)
