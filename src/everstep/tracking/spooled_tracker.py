"""`SpooledTracker`: the base class of trackers that record on a server through a spool, as MLflow and W&B do."""

import abc
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from everstep import storage
from everstep.tracking.delivery import Delivery, SendDelays, Sender
from everstep.tracking.samples import image_files, text_file
from everstep.tracking.spool import Record, Spool
from everstep.tracking.tracker import LogKind, Tracker, plain

logger = logging.getLogger(__name__)

Status = Literal["finished", "failed", "interrupted", "running"]
"""How a run ended; `running` if it has not: a sweep writes to its run from time to time."""


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
      delays: How long the thread waits between requests.
    """

    service = ""
    """What the server is called in messages."""

    def __init__(
        self,
        model_dir: storage.PathLike,
        spool: Spool,
        artifacts: Sequence[str] = (),
        close_seconds: float = 5.0,
        delays: SendDelays | None = None,
    ) -> None:
        self._directory = Path(model_dir).resolve()
        self._spool, self._artifacts = spool, artifacts
        self._close_seconds, self._delays = close_seconds, delays or SendDelays()
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
        self._sender = Sender(self._delivery, self._label(), self._delays)
        self._sender.start()

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
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
