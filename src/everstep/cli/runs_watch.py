"""`everstep runs watch`: a run, or several, looked at again and again until they end."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli.stored_runs import stored_runs
from everstep.cli.watched_run import WatchedRun, ended_well, is_at_work, name_of
from everstep.errors import UsageError
from everstep.remote.urls import is_url
from everstep.run.record import read
from everstep.submit.overview import Overview, listable, overview
from everstep.submit.submissions import newest
from everstep.tracking.live_frame import bar, frame
from everstep.tracking.live_screen import LiveScreen
from everstep.tracking.live_words import clock_time, count, percent, value_text
from everstep.tracking.painting import Line, Style, cropped, in_ascii, joined, line_of, width_of
from everstep.tracking.terminals import can_draw, only_ascii

_PAUSE, _PAUSE_OF_MANY, _PAUSE_FAR_AWAY = 1.0, 2.0, 10.0
_GRACE = 5.0  # a supervisor starts a run again after a moment
_BAR = 20

Watched = Annotated[str, typer.Argument(metavar="RUN|ROOT", help="A run directory, a directory of runs, or a URL.")]
Once = Annotated[bool, typer.Option("--once", help="Look once, and end.")]


def watch_runs(place: Watched = "runs", once: Once = False) -> None:
    """Watch a run, or all below a directory, until they end.

    On a terminal it is drawn in place, each second; elsewhere a line is printed whenever something is logged or saved,
    or has ended. Exit code 0: all finished; 1: one failed, was interrupted or killed.
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
      once: Whether to look only once.

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
      runs: Each of them, as it was when it was last looked at.
      pause: Seconds until the next look.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._by_name: dict[str, WatchedRun] = {}
        self._ended: float | None = None
        self._worked = False
        self.pause = _PAUSE
        self.look()

    @property
    def runs(self) -> list[WatchedRun]:
        return list(self._by_name.values())

    def look(self) -> None:
        """Takes a new look at all of them."""
        found = _runs(self._place)
        self._by_name = {name_of(run): self._by_name.get(name_of(run), WatchedRun()) for run in found}
        for run in found:
            self._by_name[name_of(run)].look(run)
        queued = any(
            run.submission is not None and run.submission.record.get("engine") != "background" for run in found
        )
        self.pause = _PAUSE_FAR_AWAY if queued or is_url(self._place) else _PAUSE if len(found) == 1 else _PAUSE_OF_MANY

    def has_ended(self) -> bool:
        """Returns whether nothing more is to come.

        One that has just ended badly gets a moment: whoever supervises it may start it again.
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
        found = stored_runs(place)
    elif (Path(place) / "run.json").is_file():
        found = [Overview(Path(place), listable(read(place)), newest(Path(place)))]
    elif not Path(place).is_dir():
        raise UsageError(f"there is no directory {place!r} with runs to watch")
    else:
        found = overview(Path(place))
    if not found:
        raise UsageError(f"there is no run at or below {place!r} to watch")
    return found


@contextlib.contextmanager
def _display(watched: _Watched) -> Iterator[Callable[[], None]]:
    """Gives a function that looks again and shows what it saw: in place on a terminal, else a line for each news."""
    out, told = sys.stdout, dict[str, object]()

    def tell() -> None:
        watched.look()
        for one in watched.runs:
            if told.get(name_of(one.run)) != one.news:
                told[name_of(one.run)] = one.news
                print(one.summary, flush=True)

    if not can_draw(out):
        yield tell
        return
    plain = only_ascii(out)

    def picture(columns: int, rows: int) -> list[Line]:
        lines = _picture(watched, columns, rows, plain)
        return [in_ascii(line) for line in lines] if plain else lines

    screen = LiveScreen(out, picture)
    screen.start()
    try:
        yield watched.look
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
    words = [str(record[key]) for key in ("experiment", "backend") if record.get(key)]
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
    values = ((metric, metric.last("validation")) for metric in status.metrics)
    words += [f"{metric.name} {value_text(value)}" for metric, value in values if value is not None]
    return cropped(joined([line, line_of((" · ".join(words), Style.DIM))]), width)
