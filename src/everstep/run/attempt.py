"""One attempt at a run: it holds the directory, reacts to stop requests, and records its progress and its end."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.checkpoint import WEIGHTS, Digest, weights_digest
from everstep.config import Change
from everstep.engine import backend, exactness
from everstep.errors import TrainingError, UsageError, error_text
from everstep.gang import current_gang
from everstep.loop import Hook
from everstep.run import preemption, resume_checks
from everstep.run.lock import NoLock, RunLock, last_beat
from everstep.run.parent_process import announce
from everstep.run.record import Run
from everstep.run.signals import Interrupted, Signals
from everstep.tracking import ConsoleTracker, LogKind, Tracker
from everstep.types import State

logger = logging.getLogger(__name__)


class Guard:
    """Inside the block this process holds the directory; signals and preemption notices are stop requests.

    Example:
      with Guard(directory, params.runtime) as guard:
          controller = Controller(…, stop_requested=guard.stop_requested)

    Args:
      directory: The run directory; created if it does not exist.
      runtime: The runtime section: `stop_signals`, `requeue_exit_code`, `preemption_notice`.
      is_kept: Whether the directory is kept. One that is removed afterwards is known to nobody else: it gets no lock
        and no heartbeat.

    Attributes:
      last_beat: The last heartbeat of the previous attempt, its step and its time; None if there is none.
    """

    def __init__(self, directory: Path, runtime: Any, is_kept: bool = True) -> None:
        self._directory, self._runtime = directory, runtime
        self._signals = Signals(runtime.stop_signals, runtime.requeue_exit_code)
        self._lock = RunLock(directory) if is_kept else NoLock()
        self._stack = contextlib.ExitStack()
        self._notified = False  # whether the other processes know of the request
        self.last_beat: tuple[int, float] | None = None

    def __enter__(self) -> "Guard":
        storage.prepare_directory(self._directory, "model_dir")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            self.last_beat = last_beat(self._directory)
            self._announce()
            stack.enter_context(self._signals)
            if self._runtime.preemption_notice:
                notices = preemption.watcher(self._runtime.preemption_notice)
                notices.start(self._signals.request)
                stack.callback(notices.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _announce(self, stop_reason: str | None = None) -> None:
        if current_gang().is_first:  # the others train in directories of their own
            announce(self._directory, self._runtime.requeue_exit_code, stop_reason)

    def beat(self, step: int) -> None:
        """Writes a heartbeat: `step` is done."""
        self._lock.beat(step)

    def request_stop(self, reason: str) -> None:
        """Requests a stop for a hook, as a signal or a preemption notice does; a supervisor then does not restart."""
        self._signals.request(reason, by_hook=True)

    def stop_requested(self) -> Interrupted | None:
        """Returns the exception to raise if a stop is requested; the loop saves the state while it leaves."""
        if self._signals.reason is None and (elsewhere := current_gang().requested_stop()) is not None:
            self._signals.adopt(elsewhere)
        if self._signals.reason is None:
            return None
        if not self._notified:
            self._notified = True
            current_gang().request_stop(self._signals.as_text())
            if self._signals.by_hook:
                self._announce(self._signals.reason)
        return self._signals.interrupted()

    def stop_agreed(self) -> Interrupted | None:
        """Returns the same on every process of a gang, if a stop is requested of any; all call it at the same points.

        The others then end with the same reason and exit code. What is requested meanwhile counts the next time.
        """
        own = None if self.stop_requested() is None else self._signals.as_text()
        found = next(filter(None, current_gang().gather("a stop", own)), None)
        if found is None:
            return None
        self._signals.adopt(found)
        return self.stop_requested()


@contextlib.contextmanager
def guarded(run: Run, runtime: Any, compiled: Path | None, trains: bool) -> Iterator["Guard | NoGuard"]:
    """Locks the directory; removes it again if this attempt created it and failed before its first step.

    Args:
      run: The run.
      runtime: The runtime section.
      compiled: Where compiled programs are kept; None for nowhere.
      trains: Whether this process trains; one that only evaluates locks nothing.
    """
    if not trains:
        yield NoGuard()
        return
    try:
        kept = contextlib.nullcontext() if compiled is None else backend.keep_compiled(str(compiled))
        with Guard(run.directory, runtime, run.is_kept) as guard, kept:
            run.reload()
            yield guard
    except Interrupted:  # the next attempt uses what is there: compiled programs, the run's id
        raise
    except BaseException:
        run.discard()
        raise


class NoGuard:
    """For modes that only read the run directory: no lock, no heartbeat, no stop requests."""

    last_beat = None

    def stop_requested(self) -> None:
        """Returns None: signals are not caught, so nothing requests a stop."""

    stop_agreed = stop_requested

    def request_stop(self, reason: str) -> None:
        """Does nothing: a mode that does not train ends by itself."""


class Progress(Hook):
    """Shows and records the progress of training, and writes a heartbeat, after each compiled call.

    Args:
      console: The tracker that shows the progress.
      run: The run whose record is updated.
      guard: The guard that writes heartbeats.
    """

    def __init__(self, console: ConsoleTracker, run: Run, guard: Guard) -> None:
        self._console, self._run, self._guard = console, run, guard

    def on_call_end(self, step: int) -> None:
        """The first of all hooks: whatever the others do, the step is done."""
        self._console.progress(step)
        self._run.mark_first_step()
        self._guard.beat(step)

    def on_rollback(self, steps: int) -> None:
        """Records the steps that are computed again, and the step that a kill would leave the run at."""
        self._run.add_recomputed_steps(steps)
        self._guard.beat(self._run.step)


def _devices(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what determines in which order numbers are added: the processes, the mesh of devices, the sharding."""
    mesh = engine.get("mesh") or {"data": engine.get("replicas", 1)}
    return {"processes": current_gang().size, "mesh": mesh, "sharding": engine.get("sharding", "replicated")}


class Attempt(Tracker, Hook):
    """Updates `run.json`: in memory at each log, on disk at each flush.

    It is a part of the run's state, too: the digests are those of the end of training, before the final evaluation,
    which may draw random numbers. An attempt that only has to finish the rest could not compute them.

    Args:
      run: The run whose record is updated.
      trainer: The trainer whose state is recorded.
      config_text: The text of `config.yaml`.
      allow_change: Keys that a resumed run may change.
    """

    name = "attempt"

    def __init__(self, run: Run, trainer: Any, config_text: str = "", allow_change: Sequence[str] = ()) -> None:
        self._run, self._trainer = run, trainer
        self._allowed = allow_change
        is_compared = run.is_kept or current_gang().size > 1
        self._inputs: dict[str, Any] = {
            "config": config_text,
            "data": resume_checks.data_fingerprints(trainer) if is_compared else {},
            "packages": resume_checks.packages() if is_compared else {},
        }
        self._metrics: dict[str, Mapping[str, float]] = {}
        self._digests: tuple[str, str] | None = None
        self._digested_step = -1
        self._said_exactness = False

    def start(self, step: int) -> None:
        """Cuts nothing: the record has only the newest logs, which the next ones replace."""

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Remembers the last logs of training and of evaluation."""
        if kind != "system":
            self._metrics[kind] = dict(logs)

    def flush(self) -> None:
        """Writes the record."""
        self._record_exactness()
        self._run.update(*self._position(), self._metrics)

    def close(self) -> None:
        """Remembers the last logs; the end of the attempt, which follows, is written with them."""
        self._record_exactness()
        self._run.note(*self._position(), self._metrics)

    def _position(self) -> tuple[int, int]:
        """Returns the step, and how many epochs are done; notes how long an epoch is, once that is known."""
        step, schedule = self._trainer.global_step, self.controller.schedule
        self._run.record |= {"epochs": schedule.total_epochs, "steps_per_epoch": schedule.epoch_steps}
        epochs = schedule.epochs_done(step)
        return step, self._trainer.epoch if epochs is None else int(epochs)

    def _record_exactness(self) -> None:
        if found := self._trainer.engine.exactness:
            self._run.record["exactness"] = found

    def on_call_end(self, step: int) -> None:
        """Says how far the bits of the steps can be repeated, when the first ones are done."""
        if not self._said_exactness:
            self._said_exactness = True
            if found := self._trainer.engine.exactness:
                logger.info("bits of the steps on this device: %s", exactness.as_text(found))

    def on_last_step(self, step: int) -> None:
        """Computes the digests, when the last training step is done."""
        self._compute_digests()

    def _compute_digests(self) -> None:
        engine = self._trainer.engine
        if not (self._run.is_kept or engine.is_spread):  # where it is spread, the first process needs all others
            return
        state, weights = Digest(), Digest()
        for key, array in engine.read_one_by_one():
            state.add(key, array)
            if key.startswith(WEIGHTS):
                weights.add(key, array)
        self._digests = state.hex(), weights.hex()
        self._digested_step = self._trainer.global_step

    def _record_restored_state(self) -> None:
        """Records the digests of checkpoints that the last attempt had saved, but not recorded when it was killed."""
        engine, step, states = self._trainer.engine, self._trainer.global_step, self._run.record["states"]
        if not (self._run.is_kept or engine.is_spread) or not step or self._trainer.frozen.candidates:
            return  # digests are over all weights, which checkpoints on a base do not have
        recorded = max((int(other) for other in states if int(other) < step), default=0)  # what is lost comes after it
        if engine.is_spread or str(step) not in states:
            weights = engine.digest_of([key for key in engine.variables if key.startswith(WEIGHTS)])
            self._run.add_state(step, weights)
        if current_gang().size > 1:  # all of them would have to read
            return
        for saved in self.controller.checkpointer.steps():
            if recorded < saved < step:
                with contextlib.suppress(UsageError, TrainingError):  # damaged, or removed meanwhile
                    self._run.add_state(saved, weights_digest(self.controller.checkpointer.restore(saved)[0]))

    def require_digests(self) -> None:
        """Computes the digests in an attempt that had nothing left to train, if no checkpoint has them."""
        if self._digests is None:
            self._compute_digests()

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns the configuration, the data fingerprints, the packages, and the digests, if computed."""
        digests = {"step": self._digested_step, "digests": self._digests} if self._digests else {}
        return {}, {**self._inputs, **digests}

    def check(self, meta: Mapping[str, Any]) -> None:
        """Refuses other data than the checkpoint was trained on; warns about changed libraries.

        Raises:
          UsageError: The data differs, and `allow_change` does not contain `data`.
        """
        resume_checks.check_data(meta.get("data", {}), self._inputs["data"], self._allowed)
        resume_checks.warn_about_versions(meta.get("packages", {}), self._inputs["packages"])

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Restores the digests, if they belong to the restored step."""
        self._digests, self._digested_step = None, -1
        if meta.get("step") == self._trainer.global_step:
            self._digests, self._digested_step = tuple(meta["digests"]), meta["step"]

    @contextlib.contextmanager
    def recorded(
        self,
        train_steps: int | None,
        changes: Iterable[Change] = (),
        beat: tuple[int, float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Records the attempt, and how the block ended.

        Args:
          train_steps: The step at which training ends; None while that is unknown.
          changes: The changes of the configuration since the last attempt.
          beat: The last heartbeat of the previous attempt.
          extra: Further entries of the record.
        """
        engine, record, inputs = self._trainer.engine, self._run.record, self._inputs
        former = record.get("environment", {}).get("engine", {})
        devices, running = _devices(engine.describe()), {**engine.describe(), **engine.settings}
        moved = resume_checks.moved(record["attempts"][-1:], devices, self._trainer.global_step)
        record["train_steps"] = train_steps
        self._position()
        self._run.begin(
            self._trainer.global_step,
            inputs["config"],
            data=inputs["data"],
            changes=resume_checks.as_records([*changes, *moved]),
            beat=beat,
            devices=devices,
            engine={"engine": running, "data_on_device": dict(self._trainer.data_on_device)},
            extra=extra,
        )
        self._record_restored_state()
        resume_checks.report_loop(former, running)
        try:
            yield
        except BaseException as error:
            if isinstance(error, Interrupted):
                self._run.finish("interrupted", error.reason)
                raise
            interrupted = isinstance(error, KeyboardInterrupt)
            reason = redaction.text(f"{type(error).__name__}: {error_text(error)}").splitlines()[0]
            self._run.finish("interrupted" if interrupted else "failed", reason)
            raise
        self.require_digests()
        self._run.finish("finished", "done", *(self._digests or ()))
