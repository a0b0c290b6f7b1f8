"""The run's numbers as JSON lines: `metrics.jsonl`, one object per call of `log`.

    {"step": 100, "kind": "train", "time": 1731689012.345, "training_loss": 0.25, "accuracy": 0.91}
    {"step": 100, "kind": "validation", "time": 1731689013.101, "validation_loss": 0.31, "accuracy": 0.89}

JSON has no NaN and no infinities: they are the texts "NaN", "Infinity" and "-Infinity", which `float` reads, and
pandas by itself: `pandas.read_json("runs/a/metrics.jsonl", lines=True)`.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.appending import append
from everstep.tracking.spool import Record, spelled
from everstep.tracking.tracker import LogKind, Tracker, plain

logger = logging.getLogger(__name__)

_OWN_NAMES = ("step", "kind", "time")


class JsonLinesTracker(Tracker):
    """Appends to a file of JSON lines; it has each kind of logs once for each step.

    A line reaches the file in one unbuffered write, or not at all. Lines that a resumed run logs again are cut first.
    A call that fails to write raises OSError and loses nothing: its line stays in memory until the next call.

    A number that is called `step`, `kind` or `time` gets an underscore behind its name.

    Args:
      path: The file; its directory must exist.
      clock: Seconds since the epoch.
    """

    def __init__(self, path: storage.PathLike, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path)
        self._clock = clock
        self._last: dict[str, int] = {}  # the last step in the file, of each kind not logged since the start
        self._waiting: list[Record] = []
        self._kept: str | None = None  # the beginning of the file, if it has to be rewritten

    def start(self, step: int) -> None:
        """Cuts the lines beyond `step`, and a last one that a kill left unfinished.

        Raises:
          UsageError: The file is not a log of a run, or cannot be read.
        """
        text = self._text()
        if text and "\n" in text and _record(text.partition("\n")[0]) is None:
            raise UsageError(
                "is not the log of a run",
                key="metrics.jsonl",
                received=str(self._path),
                remedy="move it away",
            )
        self._last = self._cut(lambda record: record["step"] <= step)
        self.flush()

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Appends a line."""
        if step <= self._last.pop(kind, -1):  # the evaluation of the restored step is run again
            self._cut(lambda record: record["kind"] != kind or record["step"] < step)
        named = {f"{name}_" if name in _OWN_NAMES else name: spelled(value) for name, value in plain(logs).items()}
        self._waiting.append({"step": int(step), "kind": kind, "time": round(self._clock(), 3), **named})
        self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self._waiting)
        if self._kept is not None:
            storage.write_text(self._path, self._kept + lines)
        elif lines:
            self._append(lines.encode("utf-8"))
        self._kept = None
        self._waiting.clear()

    def close(self) -> None:
        """Writes what waits."""
        self.flush()

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            append(descriptor, data)
        finally:
            os.close(descriptor)

    def _cut(self, keep: Callable[[Record], bool]) -> dict[str, int]:
        """Selects the lines that stay in the file; returns the last step of each kind among them."""
        text = self._text()
        read = [(line, _record(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
        if skipped := sum(record is None for _, record in read):
            logger.warning("%s: skipped %d lines that are not logs", self._path, skipped)
        kept = [(line, record) for line, record in read if record is not None and keep(record)]
        left = "".join(f"{line}\n" for line, _ in kept)
        self._kept = left if left != text or self._kept is not None else None
        self._waiting = [record for record in self._waiting if keep(record)]
        records = [*(record for _, record in kept), *self._waiting]
        return {record["kind"]: record["step"] for record in sorted(records, key=lambda record: record["step"])}

    def _text(self) -> str:
        if self._kept is not None:
            return self._kept
        try:
            return self._path.read_text("utf-8", errors="replace") if self._path.exists() else ""
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}",
                key="metrics.jsonl",
                received=str(self._path),
                remedy="move it away",
            ) from error


def _record(line: str) -> Record | None:
    """Returns the record in a line; None where there is none."""
    try:
        record = json.loads(line)
        return {**record, "step": int(record["step"]), "kind": str(record["kind"])}
    except (ValueError, TypeError, KeyError):
        return None
