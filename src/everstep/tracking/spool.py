"""A file in the run directory that accepts every record immediately, whatever the server does.

`MODEL_DIR/spool/<name>.jsonl` has one JSON record per line, oldest first, each stamped with the time when it was
logged. It is only ever appended to. A `Sender` thread reads behind the writer and saves how far it
got (`delivery.py`). So a slow, failing or missing server neither delays training nor loses a record.

    {"time": 1731689012345, "type": "metrics", "step": 100, "kind": "train", "values": {"loss": 0.25}}
    {"time": …, "type": "media", "step": 100, "name": "predictions", "files": ["samples/100/predictions-0.png"], …}
    {"time": …, "type": "histograms", "step": 100, "values": {"dense/kernel": {"counts": […], "edges": […]}}}
    {"time": …, "type": "params", "values": {"trainer.train_steps": "1000"}}
    {"time": …, "type": "tags", "values": {"backend": "jax"}}
    {"time": …, "type": "notes", "values": "the first with dropout"}
    {"time": …, "type": "artifact", "path": "config.yaml"}
    {"time": …, "type": "status", "status": "finished"}
    {"time": …, "type": "target", …}                        the destination of the records
"""

import dataclasses
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.tracking.appending import append
from everstep.tracking.tracker import LogKind

logger = logging.getLogger(__name__)

Record = dict[str, Any]
"""One line of a spool."""


_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class SpoolChunk:
    """The records that one read of the file returns.

    Attributes:
      records: The records, in the order of the file.
      end: The offset in the file after the last of them.
      full: Whether the read was as long as reads get, so that more records may follow.
    """

    records: list[Record]
    end: int
    full: bool = False


class Spool:
    """The writing end, and what a reader needs.

    A record reaches the file in one unbuffered write, without waiting for the disk: it survives the process, and
    costs microseconds. What cannot be written, as on a full disk, stays in memory until the next record; nothing is
    raised, because a record must not end a run.

    Args:
      directory: The folder of the spools; created when there is something to write.
      name: What the spool is called; the name of its file.
      clock: Seconds since the epoch.

    Attributes:
      path: The file.
    """

    def __init__(self, directory: storage.PathLike, name: str, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(directory) / f"{name}.jsonl"
        self._clock = clock
        self._lock = threading.RLock()
        self._descriptor: int | None = None
        self._unwritten: list[bytes] = []
        self._seen: dict[tuple[str, int], set[str]] = {}  # names by kind and step
        self._params: dict[str, Any] = {}

    def open(self) -> None:
        """Cuts a last line that a kill left unfinished, and reads what earlier attempts have recorded."""
        self.close()
        self._seen, self._params = {}, {}
        try:
            if self.path.exists():
                os.truncate(self.path, _whole_lines(self.path))
            for record in self.records():
                self._learn(record)
        except OSError as error:
            logger.warning("cannot read all of %s (%s): points in it may be recorded twice", self.path, error.strerror)

    def metrics(self, step: int, values: Mapping[str, float], kind: LogKind, once: bool = True) -> None:
        """Records numbers of a step, except those that the spool has already.

        A resumed run computes the steps since its checkpoint again, to the same numbers; each must arrive once. Without
        `once` all are recorded: they are of a moment, not of a step.
        """
        with self._lock:
            seen = self._seen.get((kind, step), set()) if once else set()
            new = {name: spelled(value) for name, value in values.items() if name not in seen}
            if new:
                self.append({"type": "metrics", "step": int(step), "kind": kind, "values": new})

    def media(self, step: int, name: str, files: Sequence[str], captions: Sequence[str] = ()) -> None:
        """Records pictures or texts of a step, which are files in the run directory, except those it has already."""
        with self._lock:
            if name not in self._seen.get(("media", step), ()):
                shown = {"name": name, "files": list(files), "captions": list(captions)}
                self.append({"type": "media", "step": int(step), **shown})

    def histograms(self, step: int, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Records histograms of a step, except those that the spool has already."""
        with self._lock:
            seen = self._seen.get(("histograms", step), set())
            if new := {name: value for name, value in values.items() if name not in seen}:
                self.append({"type": "histograms", "step": int(step), "values": new})

    def params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Records the parameters that the spool does not have yet.

        Returns:
          Those that it has with another value: a parameter is recorded once.
        """
        with self._lock:
            if new := {name: value for name, value in values.items() if name not in self._params}:
                self.append({"type": "params", "values": new})
            return {name: value for name, value in values.items() if self._params[name] != value}

    def append(self, record: Record) -> None:
        """Adds the time to a record and writes it; never raises, never blocks."""
        line = json.dumps({"time": int(self._clock() * 1000), **record}, allow_nan=False) + "\n"
        with self._lock:
            self._learn(record)
            self._unwritten.append(line.encode("utf-8"))
            self._write()

    def flush(self) -> None:
        """Tries again to write what could not be written."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Closes the file; the next record opens it again."""
        with self._lock:
            self._write()
            if self._unwritten:
                logger.warning("%s: %d records were not written", self.path, len(self._unwritten))
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def read(self, offset: int) -> SpoolChunk:
        """Returns the next records from `offset` on; none when there are no more."""
        if not self.path.exists():
            return SpoolChunk([], offset)
        with open(self.path, "rb") as file:
            file.seek(offset)
            data = file.read(_CHUNK)
            while b"\n" not in data and (more := file.read(_CHUNK)):
                data += more
        whole = data[: data.rfind(b"\n") + 1]
        return SpoolChunk(list(_parsed(whole.splitlines(), self.path)), offset + len(whole), len(data) >= _CHUNK)

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Yields every record from `offset` on."""
        while (chunk := self.read(offset)).end > offset:
            yield from chunk.records
            offset = chunk.end

    def holds(self, offset: int) -> bool:
        """Returns whether a record ends at `offset`: false of a position in some other file of this name."""
        if offset == 0 or not self.path.exists():
            return offset == 0
        with open(self.path, "rb") as file:
            file.seek(offset - 1)
            return file.read(1) == b"\n"

    def _learn(self, record: Record) -> None:
        if record["type"] == "metrics":
            self._seen.setdefault((record["kind"], record["step"]), set()).update(record["values"])
        elif record["type"] in ("media", "histograms"):
            names = record.get("values") or [record["name"]]
            self._seen.setdefault((record["type"], record["step"]), set()).update(names)
        elif record["type"] == "params":
            self._params.update(record["values"])

    def _write(self) -> None:
        if not self._unwritten:
            return
        try:
            self._append_to_file(b"".join(self._unwritten))
        except OSError as error:
            if len(self._unwritten) == 1:
                logger.warning("cannot write to %s (%s); its records stay in memory", self.path, error.strerror)
        else:
            self._unwritten.clear()

    def _append_to_file(self, data: bytes) -> None:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        append(self._descriptor, data)


def flattened(values: Mapping[str, Any], spell: Callable[[Any], Any] = str, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested mappings, each spelled, under their dotted names.

    Example: `{"trainer": {"train_steps": 10}}` becomes `{"trainer.train_steps": "10"}`.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, spell, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = spell(value)
    return flat


def last_target(records: Iterable[Record]) -> Record | None:
    """Returns the newest record of a spool's destination."""
    found = None
    for record in records:
        found = record if record["type"] == "target" else found
    return found


def point_count(records: Iterable[Record]) -> int:
    """Returns how many numbers there are in the records."""
    return sum(len(record["values"]) for record in records if record["type"] == "metrics")


def named_values(record: Record) -> dict[str, float | str]:
    """Returns the values of a `metrics` record by the names that servers show.

    They keep training and validation in one list of names: a validation metric's name begins with `validation_`.
    """
    prefix = "validation_" if record.get("kind") == "validation" else ""
    return {name if name.startswith(prefix) else prefix + name: value for name, value in record["values"].items()}


def spelled(value: float) -> float | str:
    """Returns a number as strict JSON allows it: NaN and the infinities as text, which `float` reads back."""
    return value if math.isfinite(value) else json.dumps(value)


def _parsed(lines: Iterable[bytes], path: Path) -> Iterator[Record]:
    for line in lines:
        try:
            record = json.loads(line)
            yield {"type": record["type"], "time": int(record["time"]), **record}
        except (ValueError, TypeError, KeyError):
            logger.warning("%s: skipped a line that is no record: %.80r", path, line)


def _whole_lines(path: Path) -> int:
    """Returns the length of the file up to the end of its last whole line."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        while size > 0:
            start = max(0, size - _CHUNK)
            file.seek(start)
            if (newline := file.read(size - start).rfind(b"\n")) >= 0:
                return start + newline + 1
            size = start
    return 0
