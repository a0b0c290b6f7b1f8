"""A run as somebody else's process sees it: what its files say, as the terminal display wants it."""

import time
from pathlib import Path
from typing import Any

from everstep.cli.stored_runs import StoredRun
from everstep.run.goodput import goodput, seconds
from everstep.run.heartbeat import last_beat
from everstep.submit.overview import Overview
from everstep.tracking.live_metrics import LiveMetrics
from everstep.tracking.live_rate import LiveRate
from everstep.tracking.live_status import Status
from everstep.tracking.live_words import clock_time, count, percent, rate_text, value_text
from everstep.tracking.tracker import Kind

AT_WORK = ("running", "starting", "exporting", "evaluating", "restarting", "queued")
"""The first words of the states in which more is to come."""

_GOOD_ENDS = ("finished", "trained")
_KINDS: tuple[Kind, ...] = ("train", "validation")


def name_of(run: Overview) -> str:
    """Returns where a run is."""
    return run.url if isinstance(run, StoredRun) else str(run.directory)


def is_at_work(run: Overview) -> bool:
    """Returns whether more is to come of a run."""
    return run.state.split()[0] in AT_WORK


def ended_well(run: Overview) -> bool:
    """Returns whether a run has done what it was asked to."""
    return run.state.split()[0] in _GOOD_ENDS


class WatchedRun:
    """Follows one run: reads what has changed, and remembers what speed needs.

    Attributes:
      run: The newest look at it.
    """

    def __init__(self) -> None:
        self._rate, self._metrics = LiveRate(), LiveMetrics()
        self._seen: tuple[int, int] | None = None
        self._pace: float | None = None

    def look(self, run: Overview) -> None:
        """Takes the newest look."""
        self.run = run
        self._read_metrics()
        beat = last_beat(self._files)
        moving = run.state.split()[0] == "running" and beat is not None
        self._pace = self._rate.at(beat[1], beat[0]) if moving and beat is not None else None

    @property
    def status(self) -> Status:
        """What the display shows."""
        run, record = self.run, self.run.record or {"attempts": []}
        attempts, state = record["attempts"], run.state
        rate = (self._pace or _overall(run)) if is_at_work(run) else None
        begun = seconds(attempts[-1]["started"]) if attempts else None
        return Status(
            step=run.step,
            total=run.train_steps,
            epoch=record.get("epoch"),
            phase="" if state == "running" else state,
            rate=rate,
            left=self._left,
            gone=time.time() - begun if begun and is_at_work(run) else None,
            rates=self._metrics.rates if is_at_work(run) else {},
            metrics=list(self._metrics.by_name.values()),
            saves=self._keeps_here,
            checkpoint=_newest_checkpoint(self._files / "checkpoints"),
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
        """One line of words: where it is, how it stands, how far, how fast, and its last metrics."""
        status, run = self.status, self.run
        steps = f"{count(status.step)}/{count(status.total)}" if status.total else f"{count(status.step)} steps"
        words = [name_of(run), run.state, steps]
        words += [percent(status.step / status.total)] if status.total else []
        words += [rate_text(status.rate, "steps/s")] if status.rate is not None else []
        words += [f"{clock_time(status.left)} left"] if status.left is not None else []
        for kind in _KINDS:
            values = ((metric.name, metric.last(kind)) for metric in status.metrics)
            words += [f"{kind} {name} {value_text(value)}" for name, value in values if value is not None]
        return " · ".join(words)

    @property
    def news(self) -> tuple[Any, ...]:
        """What is worth a line in a log when it changes: how it stands, what it logged, what it saved."""
        points = [(name, {kind: tuple(p) for kind, p in m.points.items()}) for name, m in self._metrics.by_name.items()]
        checkpoint = self.status.checkpoint
        return self.run.state, str(points), checkpoint and checkpoint[0]

    @property
    def _files(self) -> Path:
        """The directory that the loop trains in; of a project's run it is inside the run's."""
        inside = self.run.directory / "training"
        return inside if inside.is_dir() else self.run.directory

    @property
    def _keeps_here(self) -> bool:
        return not isinstance(self.run, StoredRun)  # of what is in a store, only the record is fetched

    def _read_metrics(self) -> None:
        """Reads the history anew if it has changed; where there is none, the last logs that the record has."""
        history, record = self._files / "history.csv", self.run.record
        logs = record["metrics"] if record else {}
        try:
            found = history.stat()
            mark: tuple[int, int] | None = (found.st_mtime_ns, found.st_size)
        except OSError:
            mark = None
        if mark is not None and mark == self._seen:
            return
        metrics = LiveMetrics()
        if mark is None:
            for kind in _KINDS:
                metrics.add(self.run.step, logs.get(kind) or {}, kind)
        else:
            own = set(logs.get("validation") or ()) - set(logs.get("train") or ())
            metrics.read(history, frozenset(own))
        self._seen, self._metrics = mark, metrics  # whole: another thread draws it


def _overall(run: Overview) -> float | None:
    """Returns the pace of the whole attempt, which the time left goes by."""
    left, total = run.seconds_left, run.train_steps
    return (total - run.step) / left if left and total else None


def _newest_checkpoint(folder: Path) -> tuple[int, float | None] | None:
    """Returns the newest whole checkpoint, and its age in seconds."""
    try:
        steps = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
        step = max(steps)
        return step, max(0.0, time.time() - (folder / str(step) / "manifest.json").stat().st_mtime)
    except (OSError, ValueError):
        return None
