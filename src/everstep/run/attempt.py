"""One attempt at a run: how far it is, how it ended, and what its state was when training was done."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstep import redaction
from everstep.config.difference import Change
from everstep.loop.hooks import Hook
from everstep.run import resume_checks
from everstep.run.digest import digest, weights_digest
from everstep.run.record import Run
from everstep.run.signals import Interrupted
from everstep.tracking.tracker import Kind, Tracker
from everstep.types import State


class Attempt(Tracker, Hook):
    """Keeps `run.json` up to date: in memory at each log, on disk at each flush.

    It is a part of the state, too: the digests are those of the end of training, before the closing evaluation, which
    may draw random numbers. An attempt that has only the rest to do could not take them.
    """

    name = "attempt"

    def __init__(self, run: Run, trainer: Any, config_text: str = "", allow_change: Sequence[str] = ()) -> None:
        self._run, self._trainer = run, trainer
        self._allowed = allow_change
        self._made_of: dict[str, Any] = {
            "config": config_text,
            "data": resume_checks.data_fingerprints(trainer) if run.is_kept else {},
            "packages": resume_checks.packages() if run.is_kept else {},
        }
        self._metrics: dict[str, Mapping[str, float]] = {}
        self._digests: tuple[str, str] | None = None
        self._digested_step = -1

    def start(self, step: int) -> None:
        """Nothing to cut: the record has only the newest logs."""

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Remembers the last logs of training and of evaluation."""
        if kind != "system":
            self._metrics[kind] = dict(logs)

    def flush(self) -> None:
        """Writes the record."""
        self._run.update(self._trainer.global_step, self._trainer.epoch, self._metrics)

    def close(self) -> None:
        """Writes the record."""
        self.flush()

    def on_train_end(self, step: int) -> None:
        """Takes the digests, when the last training step is done."""
        self._take_digests()

    def _take_digests(self) -> None:
        if not self._run.is_kept:
            return
        state = self._trainer.engine.state()
        self._digests = digest(state), weights_digest(state)
        self._digested_step = self._trainer.global_step

    def require_digests(self) -> None:
        """Takes the digests, if they are not taken: in an attempt that had nothing left to train."""
        if self._digests is None:
            self._take_digests()

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns what the run is made of, the digests, if they are taken, and of which step they are."""
        digests = {"step": self._digested_step, "digests": self._digests} if self._digests else {}
        return {}, {**self._made_of, **digests}

    def check(self, meta: Mapping[str, Any]) -> None:
        """Refuses other data than the checkpoint was trained on; says which libraries have changed.

        Raises:
          UsageError: The data differs, and nobody said that it may.
        """
        resume_checks.check_data(meta.get("data", {}), self._made_of["data"], self._allowed)
        resume_checks.warn_about_versions(meta.get("packages", {}), self._made_of["packages"])

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Knows the digests again, if they are of the step that was restored."""
        self._digests, self._digested_step = None, -1
        if meta.get("step") == self._trainer.global_step:
            self._digests, self._digested_step = tuple(meta["digests"]), meta["step"]

    @contextlib.contextmanager
    def recorded(
        self, train_steps: int | None, changes: Iterable[Change] = (), beat: tuple[int, float] | None = None
    ) -> Iterator[None]:
        """Records an attempt and how it ended; one that ran no step leaves nothing behind.

        Args:
          train_steps: The step at which training ends; None while that is unknown.
          changes: What has changed in the configuration since the last attempt.
          beat: The last sign of life of the attempt before.
        """
        parts, records = self._made_of, resume_checks.as_records(changes)
        self._run.record["train_steps"] = train_steps
        self._run.begin(self._trainer.global_step, parts["config"], data=parts["data"], changes=records, beat=beat)
        self._run.record["environment"]["engine"] = self._trainer.engine.describe()
        try:
            yield
        except BaseException as error:
            if isinstance(error, Interrupted):
                self._run.finish("interrupted", error.reason)
                raise
            interrupted = isinstance(error, KeyboardInterrupt)
            reason = redaction.text(f"{type(error).__name__}: {error}").splitlines()[0]
            self._run.finish("interrupted" if interrupted else "failed", reason)
            raise
        self.require_digests()
        self._run.finish("finished", "done", *(self._digests or ()))
