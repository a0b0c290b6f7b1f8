"""Optuna: the storage, which values come next, and which trial a worker takes.

A trial belongs to whoever holds the lock `locks/<number>`. The worker takes it, and the trial's process inherits it:
the kernel releases it when the last of them is dead, in whatever way. A trial that Optuna calls running and whose lock
is free was killed; the next worker takes it and resumes it. So none is lost, and none runs twice.

Machines that do not share the sweep's directory cannot see each other's locks. There a trial is given up when its
worker has not written a heartbeat to the storage for some minutes, and starts anew with the same values elsewhere.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import math
import os
import random
import socket
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import liveness, redaction
from everstep.errors import UsageError, missing_extra
from everstep.sweeps.definition import FORMAT, Definition, require_same, shown_metric
from everstep.sweeps.space import Values

STUDY = "everstep"
"""The name of the study in a storage that belongs to one sweep."""

HEARTBEAT_SECONDS = 30.0
_STALE_SECONDS = 300.0
_SECONDS_TO_LOCK_A_DATABASE = 120.0
_MAX_REJECTED = 1000

# Attributes of a trial in the storage.
WORKER, REJECTED, REASON, CONTINUES, REPEATS = "worker", "rejected", "reason", "continues", "repeats"
"""`WORKER` has the worker's host, the id of the directory that has its lock, and the time of its last heartbeat: one
attribute, because a storage with many trials takes as long to read as it has rows. `CONTINUES` is the trial that it
trains longer, in that trial's directory. `REPEATS` is the failed trial whose values it tries again."""
_IDENTITY, _FORMAT, _METRIC = "everstep.sweep", "everstep.format", "everstep.metric"


def load_optuna() -> Any:
    """Returns Optuna's package, with its log routed to Python's and only warnings of it shown.

    Raises:
      UsageError: It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("optuna", "sweep", "a sweep") from error
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Runs the block without Optuna's warnings about experimental features, which are chosen here, not by the user.

    Its database sets up logging from a file where the root logger has no handler, which disables every other logger:
    inside the block it has one.
    """
    optuna, root, handler = load_optuna(), logging.getLogger(), logging.NullHandler()
    if not root.handlers:
        root.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        root.removeHandler(handler)


# -- the storage -------------------------------------------------------------------------------------------------------


def storage_url(directory: Path, given: str) -> str:
    """Returns the URL of a sweep's storage; by default a database in its directory."""
    return given or f"sqlite:///{directory.resolve() / 'sweep.db'}"


def open_storage(url: str) -> Any:
    """Returns Optuna's storage at a URL: of a database, `journal:///path`, or `redis://…`.

    Raises:
      UsageError: It cannot be opened, or another version of Optuna wrote it.
    """
    optuna = load_optuna()
    redaction.learn({"storage": url})
    shown = redaction.text(url)
    try:
        with quiet_optuna():
            if url.startswith("journal://"):
                from optuna.storages.journal import JournalFileBackend

                path = Path(url.removeprefix("journal://"))
                return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            if url.startswith("redis://"):
                from optuna.storages.journal import JournalRedisBackend

                return optuna.storages.JournalStorage(JournalRedisBackend(url))
            return _database(optuna, url)
    except UsageError:
        raise
    except RuntimeError as error:
        if "optuna" not in str(error):
            raise
        raise UsageError(
            "was written by another version of Optuna",
            key="--storage",
            received=shown,
            remedy="optuna storage upgrade --storage URL upgrades it, or use another one",
        ) from error
    except Exception as error:  # SQLAlchemy's, a driver's, or the file system's
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UsageError(f"cannot be opened ({reason})", key="--storage", received=shown) from error


def _database(optuna: Any, url: str) -> Any:
    arguments: dict[str, Any] = {}
    if url.startswith("sqlite:///"):
        arguments = {"connect_args": {"timeout": _SECONDS_TO_LOCK_A_DATABASE}}
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
        if not path.parent.is_dir():
            raise UsageError("there is no such folder", key="--storage", received=str(path.parent))
        if not path.exists():
            # SQLite keeps the tables that a killed process has created so far: created aside, then renamed.
            aside = path.with_name(f".everstep-{uuid.uuid4().hex[:12]}-{path.name}")
            made = optuna.storages.RDBStorage(f"sqlite:///{aside}")
            made.engine.dispose()
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(aside, path)
            aside.unlink()
    return optuna.storages.RDBStorage(url, engine_kwargs=arguments)


# -- samplers and pruners ----------------------------------------------------------------------------------------------


def create_sampler(definition: Definition, number: int, point: Mapping[str, Any] | None = None) -> Any:
    """Returns the sampler of one trial.

    It is seeded by the trial's number: what a trial tries does not depend on which worker draws it, nor on kills.

    Args:
      definition: The sweep.
      number: The trial's number.
      point: Its point of the grid.
    """
    optuna = load_optuna()
    seed = random.Random(f"{definition.seed} {number}").randrange(2**32)
    samplers = optuna.samplers
    if point is not None:
        fixed = {one.key: one.label(point[one.key]) for one in definition.space.dimensions if one.key in point}
        return samplers.PartialFixedSampler(fixed, samplers.RandomSampler(seed=seed))
    if definition.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    if definition.sampler == "nsga2":
        # Optuna's 50 would make a sweep of 50 trials a random search.
        return samplers.NSGAIISampler(seed=seed, population_size=min(50, max(4, definition.trials // 5)))
    if definition.sampler == "cmaes":
        if importlib.util.find_spec("cmaes") is None:
            raise missing_extra("cmaes", "sweep", "--sampler cmaes")
        return samplers.CmaEsSampler(seed=seed)
    return samplers.TPESampler(seed=seed, constant_liar=True)


def create_pruner(definition: Definition) -> Any:
    """Returns the pruner of a sweep."""
    pruners = load_optuna().pruners
    if definition.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=4)
    return pruners.HyperbandPruner() if definition.pruner == "hyperband" else pruners.NopPruner()


# -- the study ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Claim:
    """A trial that this process works on, until `release`.

    Attributes:
      trial: Optuna's trial, to report to.
      number: Its number.
      values: What it tries.
      continues: The trial whose run it trains longer; None for a run of its own.
      lock: The descriptor of its lock, which the trial's process inherits.
    """

    trial: Any
    number: int
    values: Values
    continues: int | None
    lock: int

    def release(self) -> None:
        """Lets another worker have the trial, unless its process still holds it."""
        os.close(self.lock)


class SweepStudy:
    """The study of a sweep.

    Args:
      directory: The sweep's directory.
      definition: What it is.
      create: Whether to create the study, if the storage has none.

    Raises:
      UsageError: The storage cannot be opened, or has another sweep.
    """

    def __init__(self, directory: Path, definition: Definition, create: bool = False) -> None:
        optuna = load_optuna()
        self.directory, self.definition, self._usual = directory, definition, ""
        url = storage_url(directory, definition.storage)
        storage = open_storage(url)
        directions = ["minimize" if mode == "min" else "maximize" for mode in definition.modes]
        names = [study.study_name for study in storage.get_all_studies()]
        with quiet_optuna():
            if STUDY not in names and create:
                # Another process may create it at the same time; then it is there.
                self.optuna = optuna.create_study(
                    storage=storage, study_name=STUDY, directions=directions, load_if_exists=True
                )
            elif STUDY in names:
                self.optuna = optuna.load_study(storage=storage, study_name=STUDY)
            else:
                raise UsageError("has no sweep", key="--storage", received=redaction.text(url))
        self._require_ours(url)
        self.optuna.pruner = create_pruner(definition)
        self._storage, self._id = self.optuna._storage, self.optuna._study_id
        self._grid: list[Values] | None = definition.space.grid() if definition.sampler == "grid" else None
        (directory / "locks").mkdir(exist_ok=True)
        self._directory_id = _identified(directory / "locks" / "id")

    def _require_ours(self, url: str) -> None:
        attributes = self.optuna.user_attrs
        if _IDENTITY not in attributes and not self.optuna.trials:
            self.optuna.set_user_attr(_FORMAT, FORMAT)
            self.optuna.set_user_attr(_IDENTITY, self.definition.identity())
            return
        if attributes.get(_FORMAT) != FORMAT:
            raise UsageError(
                f"was written by another version of everstep (format {attributes.get(_FORMAT)!r})",
                key="--storage",
                received=redaction.text(url),
                remedy="use another one",
            )
        require_same(attributes[_IDENTITY], self.definition, redaction.text(url))

    # ---- what there is -----------------------------------------------------------------------------------------------

    def trials(self) -> list[Any]:
        """Returns the trials of the sweep, without those that violated a constraint or are repeated by a later one."""
        found = self._all_trials()
        repeated = {trial.user_attrs.get(REPEATS) for trial in found}
        return [trial for trial in found if trial.number not in repeated]

    def _all_trials(self) -> list[Any]:
        """Returns the trials whose values violated no constraint."""
        with quiet_optuna():
            found = self._storage.get_all_trials(self._id, deepcopy=False)
        return [trial for trial in found if REJECTED not in trial.user_attrs]

    @property
    def metrics(self) -> list[str]:
        """The metrics by which trials are compared; where none is named, empty text until the first trial has ended."""
        names = list(self.definition.metrics)
        if names == [""]:
            self._usual = self._usual or str(self.optuna.user_attrs.get(_METRIC, ""))
            return [self._usual]
        return names

    def choose_metrics(self, usual: str) -> list[str]:
        """Returns `metrics`; where none is named, the one that the first trial to end has logged counts for all.

        Args:
          usual: What the trial that has ended logs, `TrialMetrics.usual`.
        """
        if usual and self.metrics == [""]:
            with self._mutex():
                if self.metrics == [""]:
                    self.optuna.set_user_attr(_METRIC, usual)
        return self.metrics

    @property
    def shown_metric(self) -> str:
        """The metrics for people: `validation_loss (min)`."""
        return shown_metric(self.metrics, self.definition.modes)

    @property
    def wanted(self) -> int:
        """How many trials there are to be, apart from those that train others longer."""
        return self.definition.trials if self._grid is None else min(self.definition.trials, len(self._grid))

    def is_done(self) -> bool:
        """Returns whether all trials have ended."""
        trials = self.trials()
        own = [trial for trial in trials if CONTINUES not in trial.user_attrs]
        return len(own) >= self.wanted and all(trial.state.is_finished() for trial in trials)

    # ---- taking a trial ----------------------------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """Takes a trial: one that was killed, one that waits, or a new one; None if there is nothing to take now.

        Raises:
          UsageError: No values satisfy the constraints.
        """
        with self._mutex(), quiet_optuna():
            unfinished = [trial for trial in self.trials() if not trial.state.is_finished()]
            for trial in unfinished:
                if (claim := self._take(trial)) is not None:
                    return claim
            return self._new()

    def _take(self, frozen: Any) -> Claim | None:
        """Takes a trial that exists, if nobody works on it."""
        is_here = self._is_here(frozen)
        if frozen.state.name == "WAITING":
            if not self._storage.set_trial_state_values(frozen._trial_id, state=_running()):
                return None
        elif not is_here and not self._is_stale(frozen):
            return None
        lock = liveness.try_lock(self._lock_file(frozen.number))
        if lock is None:
            return None
        if frozen.state.name != "WAITING" and not is_here and not self._wins_stale_trial(frozen):
            os.close(lock)
            return None
        return self._opened(frozen._trial_id, lock)

    def _new(self) -> Claim | None:
        for _ in range(_MAX_REJECTED):
            own = [trial for trial in self.trials() if CONTINUES not in trial.user_attrs]
            if len(own) >= self.wanted:
                return None
            identity = self._storage.create_new_trial(self._id)
            number = self._storage.get_trial(identity).number
            if self._place(number) >= self.wanted:  # another machine was faster; between machines there is no lock
                self._reject(identity, number, "one too many")
                return None
            lock = liveness.try_lock(self._lock_file(number))
            if lock is None:
                return None  # a worker on another disk used the number before; it is stale soon
            claim = self._opened(identity, lock)
            if (broken := self.definition.space.broken(claim.values)) is None:
                return claim
            self._reject(identity, number, broken)
            claim.release()
        raise UsageError(f"{_MAX_REJECTED} draws in a row violate them", key="constraints", remedy="relax them")

    def _reject(self, identity: int, number: int, reason: str) -> None:
        """Ends a trial that is none."""
        self._storage.set_trial_user_attr(identity, REJECTED, reason)
        self.optuna.tell(number, state=_state("FAIL"))

    def _sign(self, identity: int, **more: str) -> None:
        """Notes that a worker in this directory has a trial, and is alive."""
        worker = {"host": socket.gethostname(), "directory": self._directory_id, "beat": time.time(), **more}
        self._storage.set_trial_user_attr(identity, WORKER, worker)

    def _place(self, number: int) -> int:
        """Returns how many trials there are before one, apart from those that train others longer or repeat them."""
        before = [trial for trial in self._all_trials() if trial.number < number]
        return sum(trial.user_attrs.keys().isdisjoint((CONTINUES, REPEATS)) for trial in before)

    def _opened(self, identity: int, lock: int) -> Claim:
        frozen = self._storage.get_trial(identity)
        self._sign(identity)
        self.optuna.sampler = create_sampler(self.definition, frozen.number, self._point(frozen))
        trial = load_optuna().Trial(self.optuna, identity)
        values = self.definition.space.suggest(trial)
        return Claim(trial, frozen.number, values, frozen.user_attrs.get(CONTINUES), lock)

    def _point(self, frozen: Any) -> Values | None:
        """Returns the point of the grid that a trial tries; it may have one already."""
        if self._grid is None or not frozen.user_attrs.keys().isdisjoint((CONTINUES, REPEATS)):
            return None
        place = self._place(frozen.number)
        return self._grid[place] if place < len(self._grid) else None

    def _lock_file(self, name: int | str) -> Path:
        """Returns the file that is locked by who works on a trial, by its number, or does other work."""
        return self.directory / "locks" / str(name)

    def _is_here(self, frozen: Any) -> bool:
        """Returns whether the trial's worker has its lock in this directory: a free lock then means that it is dead."""
        place = frozen.user_attrs.get(WORKER, {}).get("directory")  # None: killed before it was noted
        return place == self._directory_id or (place is None and not self.definition.storage)

    def _is_stale(self, frozen: Any) -> bool:
        """Returns whether the trial's worker, which may be on another machine, has written no heartbeat for long."""
        started = frozen.datetime_start.timestamp() if frozen.datetime_start is not None else 0.0
        beat = float(frozen.user_attrs.get(WORKER, {}).get("beat", 0.0))
        return not liveness.was_recent(max(started, beat), _STALE_SECONDS)

    def _wins_stale_trial(self, frozen: Any) -> bool:
        """Claims a trial whose worker on another machine is dead; returns whether this process got it.

        Several workers may try at once, and there is no lock between machines. Each writes its mark into the storage,
        waits, and reads it again: the last one to write has the trial.
        """
        mark = f"{socket.gethostname()} {uuid.uuid4().hex}"
        self._sign(frozen._trial_id, mark=mark)
        time.sleep(1.0)
        return bool(self._storage.get_trial(frozen._trial_id).user_attrs[WORKER].get("mark") == mark)

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        """One worker at a time chooses a trial."""
        lock = liveness.wait_for_lock(self._lock_file("claim"))
        try:
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def alone(self, work: str) -> Iterator[bool]:
        """Yields whether this process may do some work, `page` or `mlflow`, which one process does at a time."""
        lock = liveness.try_lock(self._lock_file(work))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    # ---- what a worker reports ---------------------------------------------------------------------------------------

    def write_heartbeat(self, claim: Claim) -> None:
        """Writes the time into the storage: the trial's worker is alive. On other machines its lock is not visible."""
        self._sign(claim.trial._trial_id)

    def note(self, claim: Claim, **facts: Any) -> None:
        """Stores facts about a trial."""
        for name, value in facts.items():
            claim.trial.set_user_attr(name, value)

    def prunes(self, claim: Claim) -> bool:
        """Returns whether the trial may be stopped early; one that trains another longer is not."""
        return self.definition.pruner != "none" and claim.continues is None

    def should_prune(self, claim: Claim, values: Sequence[float]) -> bool:
        """Reports the evaluations of a trial so far, in their order; returns whether it should stop.

        Evaluations are numbered from 1, whatever step they are at: trials of another batch size take other steps, and
        Hyperband's resources are evaluations.
        """
        finite = [(number, value) for number, value in enumerate(values, 1) if math.isfinite(value)]
        if not self.prunes(claim) or not finite:
            return False
        with quiet_optuna():
            known = self._storage.get_trial(claim.trial._trial_id).intermediate_values
            for number, value in finite:
                if number not in known:
                    claim.trial.report(value, number)
            return bool(claim.trial.should_prune())

    def tell(self, claim: Claim, state: str, values: Sequence[float] | None = None) -> None:
        """Ends a trial in the storage, as Optuna's `tell`: `COMPLETE` with its values, `PRUNED` or `FAIL`."""
        with quiet_optuna():
            self.optuna.tell(claim.number, values if state == "COMPLETE" else None, state=_state(state))

    def continue_best(self, count: int) -> list[int]:
        """Queues the best trials once more, to be trained longer in their own directories; returns their numbers.

        Those that wait already are not queued twice.
        """
        ranked = self.ranked()[:count]
        waiting = {
            t.user_attrs[CONTINUES] for t in self.trials() if CONTINUES in t.user_attrs and not t.state.is_finished()
        }
        for trial in ranked:
            if trial.number not in waiting:
                attributes = {CONTINUES: trial.user_attrs.get(CONTINUES, trial.number)}
                self.optuna.enqueue_trial(trial.params, user_attrs=attributes)
        return [trial.number for trial in ranked]

    def repeat_failed(self) -> list[int]:
        """Queues the values of failed trials once more, in directories of their own; returns the numbers of those.

        While a worker is at a trial nothing is queued: this process joins a sweep that is under way.
        """
        with self._mutex():
            trials = self.trials()
            if any(trial.state.name == "RUNNING" and self._is_alive(trial) for trial in trials):
                return []
            failed = [t for t in trials if t.state.name == "FAIL" and CONTINUES not in t.user_attrs]
            for trial in failed:
                self.optuna.enqueue_trial(trial.params, user_attrs={REPEATS: trial.number})
            return [trial.number for trial in failed]

    def _is_alive(self, frozen: Any) -> bool:
        """Returns whether somebody works on a trial that is called running."""
        if not self._is_here(frozen):
            return not self._is_stale(frozen)
        lock = liveness.try_lock(self._lock_file(frozen.number))
        if lock is not None:
            os.close(lock)
        return lock is None

    def ranked(self) -> list[Any]:
        """Returns the trials that have a value, the best first; of several metrics, by the first."""
        with_value = [(value, trial) for trial in self.trials() if (value := value_of(trial)) is not None]
        sign = 1.0 if self.definition.modes[0] == "min" else -1.0
        ranked = [trial for _, trial in sorted(with_value, key=lambda pair: (sign * pair[0], pair[1].number))]
        best_of_run = {trial.user_attrs.get(CONTINUES, trial.number): trial for trial in reversed(ranked)}
        return [trial for trial in ranked if best_of_run[trial.user_attrs.get(CONTINUES, trial.number)] is trial]


def _identified(path: Path) -> str:
    """Returns the id in a file, which is written once: it tells one sweep's directory from another, not a machine."""
    if not path.is_file():
        aside = path.with_name(f"id-{uuid.uuid4().hex}")
        aside.write_text(uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(aside, path)
        aside.unlink()
    return path.read_text()


def value_of(trial: Any) -> float | None:
    """Returns the value of a trial: of a pruned one, its last."""
    if trial.state.name == "COMPLETE":
        return float(trial.values[0])
    if trial.state.name == "PRUNED" and trial.intermediate_values:
        return float(trial.intermediate_values[max(trial.intermediate_values)])
    return None


def _state(name: str) -> Any:
    return load_optuna().trial.TrialState[name]


def _running() -> Any:
    return _state("RUNNING")
