"""A file in the run directory that accepts every record immediately, whatever the server does.

`MODEL_DIR/spool/<name>.jsonl` has one JSON record per line, oldest first, each stamped with the time when it was
logged. It is only ever appended to. A `Sender` thread reads behind the writer and saves how far it
got. So a slow, failing or missing server neither delays training nor loses a record.

    {"time": 1731689012345, "type": "metrics", "step": 100, "kind": "train", "values": {"loss": 0.25}}
    {"time": …, "type": "media", "step": 100, "name": "predictions", "files": ["samples/100/predictions-0.png"], …}
    {"time": …, "type": "histograms", "step": 100, "values": {"dense/kernel": {"counts": […], "edges": […]}}}
    {"time": …, "type": "params", "values": {"trainer.train_steps": "1000"}}
    {"time": …, "type": "tags", "values": {"backend": "jax"}}
    {"time": …, "type": "artifact", "path": "config.yaml"}
    {"time": …, "type": "status", "status": "finished"}
    {"time": …, "type": "target", …}                        the destination of the records
"""

import abc
import dataclasses
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import filelock
import numpy as np

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.appending import append
from everstep.tracking.samples import image_files, text_file
from everstep.tracking.tracker import Kind, Tracker, plain

logger = logging.getLogger(__name__)

Record = dict[str, Any]
"""One line of a spool."""


_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Batch:
    """Records as they stand one after the other in the file.

    Attributes:
      records: The records.
      end: The offset of the next one.
      full: Whether that is as many as are read at once: there may be more.
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

    def metrics(self, step: int, values: Mapping[str, float], kind: Kind, once: bool = True) -> None:
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

    def read(self, offset: int) -> Batch:
        """Returns the next records from `offset` on; none when there are no more."""
        if not self.path.exists():
            return Batch([], offset)
        with open(self.path, "rb") as file:
            file.seek(offset)
            data = file.read(_CHUNK)
            while b"\n" not in data and (more := file.read(_CHUNK)):
                data += more
        whole = data[: data.rfind(b"\n") + 1]
        return Batch(list(_parsed(whole.splitlines(), self.path)), offset + len(whole), len(data) >= _CHUNK)

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Yields every record from `offset` on."""
        while (batch := self.read(offset)).end > offset:
            yield from batch.records
            offset = batch.end

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


class Forgotten(Exception):
    """The server no longer has what was delivered to it: everything has to be sent again."""


class Destination(Protocol):
    """A server that takes records."""

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records; called again with the same ones when it raises.

        Raises:
          Forgotten: What was delivered before is gone.
          Exception: It is not possible now.
        """


@dataclasses.dataclass
class Progress:
    """How far a spool has been delivered.

    Attributes:
      path: The file that keeps it.
      server: Where it was delivered to. On another server nothing has been delivered.
      offset: The position in the spool of the first record that was not delivered.
      remote_id: What the server calls the run.
    """

    path: Path
    server: str
    offset: int = 0
    remote_id: str | None = None

    @classmethod
    def load(cls, path: Path, server: str, spool: Spool) -> "Progress":
        """Returns the progress in the file; none if it is about another server or another spool."""
        try:
            stored = storage.read_json(path)
            offset, remote_id = int(stored["offset"]), stored["remote_id"]
        except (UsageError, TypeError, KeyError, ValueError):  # there is none, or it is damaged: nothing depends on it
            return cls(path, server)
        same = stored.get("server") == server and spool.holds(offset)
        return cls(path, server, offset, remote_id) if same else cls(path, server)

    def save(self) -> None:
        """Writes the file."""
        known = {"server": self.server, "offset": self.offset, "remote_id": self.remote_id}
        storage.write_json(self.path, known)

    def restart(self) -> None:
        """Starts again from the beginning."""
        self.offset, self.remote_id = 0, None
        self.save()


class Delivery:
    """Delivers records from a spool to a destination, under the spool's lock."""

    def __init__(self, spool: Spool, progress: Progress, destination: Destination) -> None:
        self._spool, self._progress, self._destination = spool, progress, destination
        # Only the kernel's locks end with the process that holds them.
        self._lock = filelock.FileLock(spool.path.with_suffix(".lock"), thread_local=False, fallback_to_soft=False)

    def take_over(self) -> bool:
        """Takes the lock, without waiting for it; returns whether it is ours."""
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        except OSError as error:
            logger.debug("no locks here (%s): nothing keeps a second sender out", error)
        return True

    def hand_over(self) -> None:
        """Releases the lock."""
        self._lock.release()

    def step(self) -> Batch | None:
        """Delivers the next records and returns them; None when there are no more."""
        batch = self._spool.read(self._progress.offset)
        if batch.end == self._progress.offset:
            return None
        try:
            self._destination.send(batch.records)
        except Forgotten:
            self._progress.restart()
            return Batch([], 0, full=True)
        self._progress.offset = batch.end
        self._progress.save()
        return batch

    def done(self) -> bool:
        """Returns whether everything has been delivered."""
        return self._spool.read(self._progress.offset).end == self._progress.offset

    def waiting(self) -> int:
        """Returns how many points have not been delivered."""
        return point_count(self._spool.records(self._progress.offset))


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds to wait.

    Attributes:
      after_success: Before what has come in meanwhile is sent together; a backlog is sent without a pause.
      after_failure: Before the first new try; twice as long before each further one.
      longest: At most that long.
    """

    after_success: float = 1.0
    after_failure: float = 1.0
    longest: float = 60.0


class Sender:
    """A daemon thread that keeps delivering.

    It logs a warning when the server is lost, once, and when it is back.

    Args:
      delivery: What to call.
      label: What to call the server in the log.
      pace: How long to wait.
    """

    def __init__(self, delivery: Delivery, label: str, pace: Pace) -> None:
        self._delivery, self._label, self._pace = delivery, label, pace
        self._news, self._closing = threading.Event(), threading.Event()
        self._failures = 0
        self._lost_at: float | None = None
        self._sent_since = 0
        self._silent = False
        self._thread = threading.Thread(target=self._work, name="everstep-sender", daemon=True)

    def start(self) -> None:
        """Begins to deliver."""
        self._thread.start()

    def wake(self) -> None:
        """Signals that the spool has new records."""
        self._news.set()

    def close(self, seconds: float) -> None:
        """Waits until all is delivered, at most `seconds`; not at all for a server that does not answer.

        A request that hangs for longer is abandoned: the daemon thread does not keep the process alive.
        """
        self._closing.set()
        self._news.set()
        self._thread.join(seconds)
        self._silent = True

    def _work(self) -> None:
        while not self._delivery.take_over():  # an earlier thread may still have a request open
            if self._closing.wait(self._pace.after_success):
                return
        try:
            while self._deliver():
                pass
        finally:
            self._delivery.hand_over()

    def _deliver(self) -> bool:
        """Delivers once and waits; returns whether to continue."""
        self._news.clear()  # before reading the spool: later records set it again
        last = self._closing.is_set()
        try:
            batch = self._delivery.step()
        except Exception as error:  # no error may end the thread
            self._lost(error)
            self._closing.wait(self._wait_after_failure())
            return not last
        if batch is None:
            self._caught_up()
            return not last and self._news.wait()
        self._sent_since += point_count(batch.records)
        self._failures = 0
        if not batch.full:
            self._closing.wait(self._pace.after_success)
        return True

    def _wait_after_failure(self) -> float:
        return min(self._pace.longest, self._pace.after_failure * 2.0 ** min(self._failures - 1, 30))

    def _lost(self, error: Exception) -> None:
        self._failures += 1
        if self._lost_at is None:
            self._lost_at, self._sent_since = time.monotonic(), 0
            self._warn("%s cannot be reached (%s); points are kept on disk, training continues", self._label, error)

    def _caught_up(self) -> None:
        if self._lost_at is not None:
            seconds, self._lost_at = time.monotonic() - self._lost_at, None
            self._warn("%s is back after %.0f s: %d points sent", self._label, seconds, self._sent_since)

    def _warn(self, *message: object) -> None:
        if not self._silent:
            logger.warning(*message)


Status = Literal["finished", "failed", "interrupted"]


class SpooledTracker(Tracker):
    """Records a run on a server: one run there over all attempts, each point once.

    Every call only appends to a file in `MODEL_DIR/spool`; a thread sends from there. What could not be sent when the
    run ends stays there for the next attempt, or for `everstep runs sync`.

    A number that an earlier attempt recorded for the same step is not recorded again: servers forget nothing, and a
    resumed run computes the same numbers. So if it was changed on purpose (another learning rate, batches skipped after
    a NaN), the steps that are run a second time keep their first numbers there.

    Args:
      model_dir: The run directory.
      spool: Takes the records.
      artifacts: Small files in the run directory to keep with the run.
      close_seconds: How long `close` waits for the rest to be sent.
      pace: How long the thread waits between requests.
    """

    service = ""
    """What the server is called in messages."""

    def __init__(
        self,
        model_dir: storage.PathLike,
        spool: Spool,
        artifacts: Sequence[str] = (),
        close_seconds: float = 5.0,
        pace: Pace | None = None,
    ) -> None:
        self._directory = Path(model_dir).resolve()
        self._spool, self._artifacts = spool, artifacts
        self._close_seconds, self._pace = close_seconds, pace or Pace()
        self._delivery: Delivery | None = None
        self._sender: Sender | None = None
        self._status: Status | None = None

    def start(self, step: int) -> None:
        """Begins an attempt: starts to send what the spool still holds, and the run's description.

        A rollback to an earlier step stays in the same attempt and the same run: nothing is to be done.
        """
        if self._sender is not None:
            return
        self._status = None
        self._prepare()
        self._spool.open()
        self._describe()
        self._delivery = self._connected()
        self._sender = Sender(self._delivery, self._label(), self._pace)
        self._sender.start()

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Appends a point to the spool; of the machine there may be several at one step."""
        self._spool.metrics(step, plain(logs), kind, once=kind != "system")
        self._wake()

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Records the images in `samples/`, and their captions, as files to keep with the run."""
        files = [*image_files(step, name, len(images)), text_file(step, f"{name}.captions")]
        self._spool.media(step, name, files, list(captions))
        self._wake()

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Records the texts in `samples/` as a file to keep with the run."""
        self._spool.media(step, name, [text_file(step, name)])
        self._wake()

    def flush(self) -> None:
        """Does not wait for the server: what is in the spool survives a kill."""
        self._spool.flush()
        self._wake()

    def finish(self, status: Status) -> None:
        """Sets how the run ended, before `close`; without it, an exception being handled decides."""
        self._status = status

    def close(self) -> None:
        """Waits a few seconds for the rest to be sent, and logs what is left."""
        if self._sender is None or self._delivery is None:
            return
        sender, self._sender = self._sender, None
        status = self._status or _verdict()
        self._spool.append({"type": "status", "status": status})
        self._spool.close()
        sender.close(self._patience(status))
        if not self._delivery.done():
            logger.warning(
                "%d points and the end of the run wait for %s in %s; the next attempt sends them, or: "
                "everstep runs sync %s",
                self._delivery.waiting(),
                self.service,
                self._spool.path,
                self._directory,
            )

    def _describe(self) -> None:
        """Records the description of the run, and its destination."""
        self._spool.append(self._target_record())
        self._describe_run()
        for path in self._artifacts:
            self._spool.append({"type": "artifact", "path": path})
        self._spool.append({"type": "status", "status": "running"})

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    # ---- what differs from server to server ------------------------------------------------------------------------

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Does what must be done before a thread can talk to the server."""

    @abc.abstractmethod
    def _target_record(self) -> Record:
        """Returns the destination of the records, as a record of the spool."""

    @abc.abstractmethod
    def _describe_run(self) -> None:
        """Records parameters and tags."""

    @abc.abstractmethod
    def _connected(self) -> Delivery:
        """Returns what takes records from the spool to the server."""

    @abc.abstractmethod
    def _label(self) -> str:
        """Returns what to call the server in the log."""

    def _patience(self, status: Status) -> float:
        """Returns how many seconds `close` waits."""
        return self._close_seconds


def _verdict() -> Status:
    """Returns how a run ends that is closed now."""
    error = sys.exception()
    if error is None:
        return "finished"
    return "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
