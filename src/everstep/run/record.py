"""The record of a run in its directory, `run.json` and `config.yaml`, over all attempts."""

import concurrent.futures
import contextlib
import copy
import datetime
import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from everstep import redaction, storage
from everstep.checkpoint import newest_step, weights_digest
from everstep.errors import UsageError
from everstep.gang import current_gang
from everstep.run.code_files import imported_change, with_files_of, with_imported_files
from everstep.run.environments import (
    CODE_DIFF,
    REQUIREMENTS,
    environment,
    read_code,
    requirements_text,
    seconds_since_start,
    write_code_diff,
)
from everstep.run.labels import Labels
from everstep.run.layout_registry import layouts
from everstep.run.naming import runs_like
from everstep.types import StoredState

logger = logging.getLogger(__name__)

Status = Literal["running", "finished", "failed", "interrupted"]
Record = dict[str, Any]
"""The content of `run.json`."""

_Code = tuple[dict[str, Any], bytes | None]
"""What `read_code` returns."""

MAX_STATES = 500
"""The maximum number of recorded states; beyond it, every other one is dropped."""

Clock = Callable[[], datetime.datetime]

_utc_now = functools.partial(datetime.datetime.now, datetime.UTC)
_BLANK: Record = {
    "id": None,
    "experiment": None,
    "name": None,
    "tags": {},
    "notes": "",
    "backend": None,
    "mode": None,
    "status": None,
    "step": 0,
    "epoch": 0,
    "train_steps": None,
    "epochs": None,
    "steps_per_epoch": None,
    "stopped_early": None,
    "final_weights": None,
    "attempts": [],
    "metrics": {"train": {}, "validation": {}},
    "digest": None,
    "weights_digest": None,
    "states": {},
    "code": {},
    "environment": {},
    "data": {},
    "initial_weights": [],
    "cost": {},
}


FORKED_FROM = "forked_from"
"""The key of a fork's record that names its parent: `run`, the id, `directory` and `step`."""

OWN_FILES = ("config.yaml", REQUIREMENTS, CODE_DIFF, "history.csv")
"""The files that a run writes in its directory, after `run.json`."""


_BEFORE_A_RUN = ("submissions", "checkpoints", "spool", "train", "validation", "processes", "params.yaml")
"""Files and folders that a run directory may contain before its record, beside those of entry points."""


def refuse_foreign(directory: Path, names: Sequence[str]) -> None:
    """Refuses a directory with files that a run would overwrite, and that no run has written.

    Raises:
      UsageError: There is such a file.
    """
    foreign = [] if (directory / "run.json").exists() else [name for name in names if (directory / name).exists()]
    if foreign:
        raise UsageError(
            f"{foreign[0]!r} in it is not a run's, and a run would overwrite it",
            key="model_dir",
            received=str(directory),
            remedy="use another directory",
        )


class Run:
    """One experiment in one directory.

    Example:
      run = Run.open(model_dir, "mnist/mlp", "jax")
      run.begin(restored_step, config_text)
      run.update(100, 0, {"train": {"loss": 0.3}})
      run.finish("finished", "train_steps reached", digest(state), weights_digest(state))

    Attributes:
      directory: The run directory.
      record: What `run.json` says, or will say with the next write.
      code_root: Where the run's code is; by default the working directory.
      is_kept: Whether the directory is kept afterwards; if not, no record is written.
      newest_save: The last step that this attempt has saved, and when (`time.monotonic`); None before the first.
    """

    def __init__(
        self,
        directory: Path,
        record: Record,
        clock: Clock = _utc_now,
        code_root: storage.PathLike | None = None,
        is_kept: bool = True,
    ) -> None:
        self.directory = directory
        self.record = record
        self.code_root = Path.cwd() if code_root is None else Path(code_root)
        self.is_kept = is_kept
        self._clock = clock
        self._opened = self._time()
        self.newest_save: tuple[int, float] | None = None
        self._code: concurrent.futures.Future[_Code] | None = None
        self._unwritten = False  # whether writing the record has failed, and was logged
        self._other_files = _other_files(directory)
        self._created = [path for path in (directory, *directory.parents) if not path.exists()]

    @classmethod
    def open(
        cls,
        model_dir: storage.PathLike,
        experiment: str,
        backend: str,
        clock: Clock = _utc_now,
        code_root: storage.PathLike | None = None,
        is_kept: bool = True,
        labels: Labels | None = None,
    ) -> "Run":
        """Returns the run in `model_dir`, with its id and attempts so far, or a new one.

        Nothing is written before `begin`. Open it before anything else writes there: a directory that does not
        exist yet counts as created by this attempt.

        Raises:
          UsageError: There is a `run.json` that cannot be read.
        """
        directory = Path(model_dir)
        record = read(directory) if (directory / "run.json").exists() else _blank(id=uuid.uuid4().hex)
        entries = (labels or Labels()).entries(record, experiment)
        return cls(directory, record | entries | {"backend": backend}, clock, code_root, is_kept)

    def reload(self) -> None:
        """Reads the record again; call it once this process holds the directory's lock."""
        if (self.directory / "run.json").exists():
            own = ("experiment", "name", "tags", "notes", "backend")
            self.record |= {**read(self.directory), **{key: self.record[key] for key in own}}

    @property
    def id(self) -> str:
        """The run's id, the same in all its attempts."""
        return str(self.record["id"])

    def recorded_id(self) -> str:
        """Returns the id in `run.json` as it is now; empty while no trainer has written one."""
        return str(read(self.directory)["id"]) if (self.directory / "run.json").exists() else ""

    @property
    def step(self) -> int:
        """The number of steps done, as recorded."""
        return int(self.record["step"])

    def start_reading_code(self) -> "concurrent.futures.Future[_Code]":
        """Starts to read the version of the code, once: git works for a tenth of a second, beside this process."""
        if self._code is None:
            thread = concurrent.futures.ThreadPoolExecutor(1, "everstep-code")
            self._code = thread.submit(read_code, self.code_root)
            thread.shutdown(wait=False)
        return self._code

    def code(self) -> dict[str, Any]:
        """Returns the version of the code at `code_root`; read once."""
        return self.start_reading_code().result()[0]

    def changed_code(self) -> str:
        """Returns how the code differs from that of the last attempt, on one line; empty if it does not."""
        before = self.record["code"]
        if not self.record["attempts"]:
            return ""
        return imported_change(before, with_files_of(before, self.code(), self.code_root))

    def begin(
        self,
        step: int,
        config_text: str,
        *,
        code: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        changes: Iterable[Mapping[str, Any]] = (),
        beat: tuple[int, float] | None = None,
        devices: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts an attempt at `step`; an earlier attempt without an end was killed.

        Args:
          step: The restored step, 0 for a new run.
          config_text: The resolved configuration, written to `config.yaml`.
          code: The version of the code, where nothing is uncommitted; by default that of `code_root`.
          data: Fingerprints of the data, if taken.
          changes: The changes of the configuration since the last attempt: `key`, `old` and `new` of each.
          beat: The last heartbeat of an earlier attempt: its step, and its time in seconds since 1970.
          devices: Further entries of the attempt: on what it is computed.
          engine: Further entries of the environment: how steps are run.
          extra: Further entries of the record; `data` adds fingerprints.

        Raises:
          UsageError: The directory cannot be created or written to.
        """
        refuse_foreign(self.directory, OWN_FILES)
        if self._other_files:
            others = self._other_files
            shown = others if len(others) <= 5 else [*others[:5], f"and {len(others) - 5} more"]
            logger.warning(
                "%r contains other files (%s): they are kept, also when this run is removed; a directory of its own is "
                "easier to copy",
                *(str(self.directory), ", ".join(shown)),
            )
            self.record["other_files"] = others
        storage.prepare_directory(self.directory)
        patch = None
        if code is None:
            code, patch = self.start_reading_code().result() if self.is_kept else ({}, None)
        for attempt in self.record["attempts"]:
            if attempt["ended"] is None:
                self._close_dead_attempt(attempt, beat)
        begun = self._attempt(step) | {"changes": [dict(change) for change in changes], "code": dict(code)}
        self.record["attempts"].append(begun | dict(devices or {}))
        self.record |= {"status": "running", "step": step, "digest": None, "weights_digest": None}
        self.record |= {"stopped_early": None, "final_weights": None}
        self.record["environment"] = {**(environment() if self.is_kept else {}), **(engine or {})}
        self.record |= {} if data is None or not self.is_kept else {"data": dict(data)}
        extra = extra or {}
        self.record |= {**extra, "data": {**self.record["data"], **extra.get("data", {})}}
        if not self.is_kept:
            return
        self.record["code"] = with_imported_files(code, self.code_root)
        self._drop_states(step + 1)
        files = {"run.json": self._text(), "config.yaml": config_text, REQUIREMENTS: requirements_text()}
        with self._disk_errors_as_usage():
            storage.write_files({self.directory / name: text.encode() for name, text in files.items()})
            write_code_diff(self.directory, patch)

    @contextlib.contextmanager
    def _disk_errors_as_usage(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"cannot be written to: {error.strerror}",
                key="model_dir",
                received=str(self.directory),
                remedy="free some space, or use another directory",
            ) from error

    def _close_dead_attempt(self, attempt: Record, beat: tuple[int, float] | None) -> None:
        """Completes the record of an attempt that was killed."""
        attempt["reason"] = attempt["reason"] or "killed"
        attempt["ended"] = attempt["started"]
        if beat is None:
            return
        last = _spelled(datetime.datetime.fromtimestamp(beat[1], datetime.UTC))
        if last >= attempt["started"]:  # else it is the heartbeat of an earlier attempt
            attempt["to_step"] = max(attempt["to_step"], beat[0])
            attempt["ended"] = last

    def mark_first_step(self) -> None:
        """Records when the attempt has done its first steps; written at once, in case it is killed early."""
        attempt = self.record["attempts"][-1]
        if attempt["first_step"] is None:
            attempt |= {"first_step": self._time(), "startup_seconds": seconds_since_start()}
            self._try_to_write()

    def add_recomputed_steps(self, steps: int) -> None:
        """Records, at once, that the attempt has rolled back `steps` steps, which it computes again."""
        attempt = self.record["attempts"][-1]
        attempt["steps_again"] += steps
        attempt["to_step"] -= steps
        self.record["step"] = attempt["to_step"]
        self._try_to_write()

    def saved(self, step: int, state: StoredState | None) -> None:
        """Records the digest of the weights of a checkpoint, with the next write.

        The thread that writes checkpoints calls it, while training continues.

        Args:
          step: The saved step.
          state: Every variable after it; None if the checkpoint refers to frozen weights: then the digest, which is
            over all weights, is not recorded.
        """
        self.newest_save = step, time.monotonic()
        attempt = self.record["attempts"][-1]
        attempt["saved_step"] = step
        found = {} if state is None else {str(step): weights_digest(state)}
        self._drop_states(step)
        self.record["states"] = {**self.record["states"], **found}
        if attempt["ended"] is not None:  # it failed while this was being written
            self._try_to_write()

    def add_state(self, step: int, digest: str) -> None:
        """Records the digest of the weights of a step, with the next write."""
        states = {**self.record["states"], str(step): digest}
        self.record["states"] = {name: states[name] for name in sorted(states, key=int)}

    def _drop_states(self, step: int) -> None:
        """Drops the digests of `step` and later: these steps are recomputed, perhaps without some batches."""
        known = {name: found for name, found in self.record["states"].items() if int(name) < step}
        # Another thread may be writing the record: replace the dictionary, never change it.
        self.record["states"] = known if len(known) < MAX_STATES else dict(list(known.items())[::2])

    def update(self, step: int, epoch: int, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Records the progress of the run, as `note`, and writes it.

        A failed write is logged and does not stop the run: the next write has everything.
        """
        self.note(step, epoch, metrics)
        self._try_to_write()

    def note(self, step: int, epoch: int, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Records the progress of the run with the next write; `metrics` replaces the last logs of its kinds."""
        self.record |= {"step": step, "epoch": epoch}
        self.record["metrics"] |= {kind: dict(logs) for kind, logs in (metrics or {}).items()}
        self.record["attempts"][-1]["to_step"] = step

    def finish(self, status: Status, reason: str, digest: str | None = None, weights_digest: str | None = None) -> None:
        """Ends the attempt, for `reason`; a failed write is only logged."""
        self.record["attempts"][-1] |= {"ended": self._time(), "reason": reason}
        self.record |= {"status": status, "digest": digest, "weights_digest": weights_digest}
        if self.is_kept:  # what was imported later
            self.record["code"] = with_imported_files(self.record["code"], self.code_root)
        self._try_to_write()

    def discard(self) -> bool:
        """Removes the directory if this attempt created it and ran no step; otherwise keeps everything.

        Returns:
          Whether it was removed.
        """
        if not self._created or not self.directory.is_dir() or self._has_steps():
            return False
        storage.remove_directory(self.directory)
        for parent in self._created[1:]:
            with contextlib.suppress(OSError):  # in use by others
                parent.rmdir()
        return True

    def _has_steps(self) -> bool:
        # A checkpoint beyond step 0 proves work, whatever the record says.
        computed = any(attempt.get("first_step") for attempt in self.record["attempts"])
        return self.step > 0 or computed or bool(newest_step(self.directory))

    def _attempt(self, step: int) -> Record:
        times = {"started": self._opened, "first_step": None, "ended": None}
        processes = {"processes": current_gang().size, "hosts": sorted({one.host for one in current_gang().members})}
        steps = {"from_step": step, "to_step": step, "saved_step": step, "steps_again": 0}
        return {**times, **steps, "reason": None, **processes}

    def _time(self) -> str:
        return _spelled(self._clock())

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError as error:
            if not self._unwritten:
                logger.warning("%s cannot be written: %s", self.directory / "run.json", error.strerror)
            self._unwritten = True
        else:
            self._unwritten = False

    def _write(self) -> None:
        if not self.is_kept:
            return
        storage.write_text(self.directory / "run.json", self._text())

    def _text(self) -> str:
        return storage.json_text(redaction.tree(self.record)) + "\n"


def _other_files(directory: Path) -> list[str]:
    """Returns the files in a directory without a run, except hidden files and those of a submission."""
    if not directory.is_dir() or (directory / "run.json").exists():
        return []
    names = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    if not names:  # as usual: then nobody has to look for the layouts of all installed packages
        return []
    expected = {*_BEFORE_A_RUN, *(name for layout in layouts() for name in layout.before_record)}
    return [name for name in names if name not in expected]


def _spelled(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds")


def read(model_dir: storage.PathLike) -> Record:
    """Returns the record of the run in `model_dir`.

    Raises:
      UsageError: It is no run directory, or its record is damaged.
    """
    path = Path(model_dir) / "run.json"
    if not path.is_file():
        raise UsageError(
            f"{os.fspath(model_dir)!r} is not a run directory: it has no run.json", remedy=runs_like(model_dir)
        )
    record = storage.read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise UsageError(f"{str(path)!r} is not the record of a run: it has no 'id'")
    return _blank(**record)


def find_runs(root: storage.PathLike) -> list[tuple[Path, Record]]:
    """Returns every run at or below `root` with its record, sorted by path.

    A record that cannot be read is listed with status "unreadable": a listing must not hide a run.
    """
    return [(path, _read_or_blank(path)) for path in sorted(_run_directories(Path(root)))]


def _run_directories(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        if "run.json" in files:
            yield Path(directory)
            names.clear()
        names[:] = [name for name in names if not name.startswith(".")]


def _read_or_blank(path: Path) -> Record:
    try:
        return read(path)
    except UsageError:
        return _blank(status="unreadable")


def _blank(**known: Any) -> Record:
    return copy.deepcopy(_BLANK) | known


_NUMBER, _TEXT, _NONE = (int,), (str,), (type(None),)
_TOP = {
    "status": (*_TEXT, *_NONE),
    "step": _NUMBER,
    "epoch": _NUMBER,
    "train_steps": (*_NUMBER, *_NONE),
    "attempts": (list,),
    "metrics": (dict,),
    "code": (dict,),
    "environment": (dict,),
    "data": (dict,),
    "cost": (dict,),
    "stopped_early": (dict, *_NONE),
    "final_weights": (dict, *_NONE),
}
_ATTEMPT = {
    "started": _TEXT,
    "ended": (*_TEXT, *_NONE),
    "from_step": _NUMBER,
    "to_step": _NUMBER,
    "reason": (*_TEXT, *_NONE),
}


def damage(record: Mapping[str, Any]) -> str | None:
    """Returns the first key of a record that is missing or has a wrong type, `attempts[0].started`; None if none is.

    Times only have to be strings here; their readers parse them.
    """
    return next(_wrong_keys(record), None)


def _wrong_keys(record: Mapping[str, Any]) -> Iterator[str]:
    yield from _mismatches(record, _TOP, "")
    if not isinstance(record.get("classes", []), list):
        yield "classes"
    for number, attempt in enumerate(record["attempts"]):
        yield from _mismatches(attempt, _ATTEMPT, f"attempts[{number}].")
        for later in ("steps_again", "saved_step"):  # older versions did not write them
            if not isinstance(attempt.get(later, 0), int):
                yield f"attempts[{number}].{later}"
    yield from (f"metrics.{kind}" for kind, logs in record["metrics"].items() if not isinstance(logs, dict))


def _mismatches(part: Any, shape: Mapping[str, tuple[type, ...]], path: str) -> Iterator[str]:
    if not isinstance(part, dict):
        yield path.removesuffix(".")
        return
    for key, types in shape.items():
        if key not in part or not isinstance(part[key], types):
            yield f"{path}{key}"
