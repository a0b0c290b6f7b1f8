"""Local directories for runs in a store: a copy to train in, read-only copies, the records of all runs."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock

from everstep import storage
from everstep.checkpoint.remote import cache, urls
from everstep.checkpoint.remote.cache import (
    Contents,
    Copy,
    fetch_files,
    fetch_newest,
    fetch_others,
    fetch_unit,
    remove_missing,
)
from everstep.checkpoint.remote.layout import HEARTBEAT, RECORD, read_index, scan
from everstep.checkpoint.remote.lease import LEASE, HeldStore, Lease, LostLease, already_training
from everstep.checkpoint.remote.mirror import Mirror, Uploader
from everstep.checkpoint.remote.store import Store, StoreError, brief
from everstep.checkpoint.remote.urls import checked, is_url, join, refuse_lost_slash
from everstep.errors import TrainingError, UsageError
from everstep.gang import barrier, current_gang

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_SECONDS_TO_END = 5.0  # for a store that answers; a thread that waits longer ends with the process
_RECORDS = (RECORD, HEARTBEAT, LEASE)


@contextlib.contextmanager
def working_copy(model_dir: Any, training: bool = True, follow: bool = False) -> Iterator[Any]:
    """Yields the local directory of a run: a local directory is yielded itself, for a URL it is a copy.

    The copy has what the store has. While the block runs, a thread uploads what is new; the end of the block waits
    until everything is in the store. Several processes that train together share the copy of the first one.

    Example:
      with working_copy("s3://bucket/runs/demo") as directory:
          ...  # a run trains in `directory`

    Args:
      model_dir: A directory, or a URL.
      training: Whether the run is trained. Otherwise it is read, from a separate copy, and nothing is uploaded.
      follow: Whether a reader's copy is kept up to date; the run may then start later.

    Raises:
      UsageError: The URL is invalid, the store cannot be reached, or another machine trains the run.
      TrainingError: What the store has is damaged; or the run is done, but the store does not have all of it.
    """
    refuse_lost_slash(model_dir)
    if not is_url(model_dir):
        yield model_dir
    else:
        url, gang = checked(model_dir), current_gang()
        if gang.is_first:
            with _training_copy(url) if training else _reading_copy(url, follow) as directory:
                gang.share("the working copy", str(directory))
                yield directory
        else:
            yield Path(gang.share("the working copy", None))
        barrier(gang, "the store has the run")  # the others do not end while the first one uploads


@contextlib.contextmanager
def _training_copy(url: str) -> Iterator[Path]:
    lease = Lease(Store(url), urls.upload_interval())
    with _one_process(url, lease):
        with _reachable():
            lease.acquire()
        lease.keep()
        try:
            with contextlib.closing(Copy(url)) as copy:
                mirror = Mirror(HeldStore(url, lease), copy)
                with _reachable():
                    mirror.fetch()
                with _uploading(mirror, lease):
                    yield mirror.directory
        finally:
            lease.release()


@contextlib.contextmanager
def _uploading(mirror: Mirror, lease: Lease) -> Iterator[None]:
    """Uploads while the block runs, and the rest at its end; an error of the block takes precedence."""
    uploader = Uploader(mirror, lease)
    uploader.start()
    try:
        yield
    except BaseException as failure:
        by_signal = not isinstance(failure, Exception)
        error = uploader.close(urls.upload_grace() if by_signal else None)
        if error is not None:
            logger.error("%s", _incomplete(mirror, error))
        if mirror.was_empty and not mirror.directory.exists():  # the run ended before its first step: leave nothing
            with contextlib.suppress(StoreError):
                mirror.forget()
        raise
    if (error := uploader.close()) is not None:
        raise _incomplete(mirror, error) from error


def _incomplete(mirror: Mirror, error: Exception) -> TrainingError:
    if isinstance(error, LostLease):
        remedy = f"what was computed here since is in {str(mirror.directory)!r} and is not uploaded"
    else:
        remedy = f"the rest is in {str(mirror.directory)!r}; the same command on this machine uploads it"
    return TrainingError(f"does not have all of the run: {brief(error)}", key=mirror.store.url, remedy=remedy)


def local_view(
    url: str, checkpoints: bool = True, wanted: Callable[[list[int]], Collection[int]] = lambda steps: ()
) -> Path:
    """Fetches a read-only copy of a run in a store; returns its local directory.

    Nothing that is written there is uploaded. Each call fetches what has changed.

    Args:
      url: The run in the store.
      checkpoints: Whether to fetch the newest checkpoint, and the best weights.
      wanted: Called with the steps in the store; returns which of them to fetch beside the newest.

    Raises:
      UsageError: There is no run, or the store cannot be reached.
      TrainingError: What the store has is damaged.
    """
    url = checked(url, "run")
    directory = _view_directory(url)
    storage.prepare_directory(directory.parent)
    with filelock.FileLock(f"{directory}.lock"), _reachable():
        _refresh(Store(url), directory, checkpoints, wanted)
    return directory


def _view_directory(url: str) -> Path:
    return cache.root() / "views" / cache.key(url) / url.rpartition("/")[2]


class _NoRun(UsageError):
    """The store has no run there."""


def _refresh(store: Store, directory: Path, checkpoints: bool, wanted: Callable[[list[int]], Collection[int]]) -> None:
    for tries_left in reversed(range(_ATTEMPTS)):
        contents = Contents(store)
        if contents.is_empty:
            raise _NoRun("there is no run at this URL", key="run", received=store.url, remedy="check the URL")
        try:
            _fetch_view(contents, directory, checkpoints)
            _fetch_steps(contents, directory, wanted([unit.step for unit in contents.checkpoints]))
            return
        except TrainingError:
            if not tries_left or read_index(store) == contents.index:
                raise  # the store has not changed meanwhile, so it is damaged


def _fetch_view(contents: Contents, directory: Path, checkpoints: bool) -> None:
    directory.mkdir(exist_ok=True)
    fetch_files(contents, directory)
    _remove_stale_files(directory, contents.files())
    if checkpoints:
        staging = _staging(directory)
        fetch_others(contents, directory, staging)
        fetch_newest(contents, directory, staging)
        remove_missing(contents, directory, scan(directory).units)


def _fetch_steps(contents: Contents, directory: Path, steps: Collection[int]) -> None:
    for unit in contents.checkpoints:
        if unit.step in steps and not fetch_unit(contents.store, unit, directory, _staging(directory)):
            raise TrainingError(
                "the checkpoint is damaged", key=f"{contents.store.url}/{unit.path}", remedy="choose another step"
            )


def _staging(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.staging")


def _remove_stale_files(directory: Path, names: list[str]) -> None:
    """Removes what was fetched earlier and is no longer in the store; files written on this machine are kept."""
    known = directory.with_name(f"{directory.name}.files.json")
    with contextlib.suppress(UsageError, TypeError):
        for name in set(storage.read_json(known)) - set(names):
            (directory / name).unlink(missing_ok=True)
    storage.write_json(known, names)


@contextlib.contextmanager
def _reading_copy(url: str, follow: bool) -> Iterator[Path]:
    if not follow:
        yield local_view(url)
        return
    directory, ended = _view_directory(url), threading.Event()
    with contextlib.suppress(_NoRun):  # the trainer has not started yet
        local_view(url)
    thread = threading.Thread(target=_keep_up_to_date, args=(url, ended), name="everstep-follow", daemon=True)
    thread.start()
    try:
        yield directory
    finally:
        ended.set()
        thread.join(_SECONDS_TO_END)


def _keep_up_to_date(url: str, ended: threading.Event) -> None:
    while not ended.wait(urls.upload_interval()):
        try:
            local_view(url)
        except _NoRun:
            continue
        except Exception as error:  # retried
            logger.warning("%s cannot be read now (still retrying): %s", url, brief(error))


def local_runs(url: str) -> list[tuple[str, Path]]:
    """Fetches the records of all runs below a URL; returns the URL and a local directory of each run.

    A directory has `run.json`, and of a live run its heartbeat and its lease; see `lease.is_renewed`.

    Raises:
      UsageError: The store cannot be reached.
    """
    url = checked(url, "runs")
    store, root = Store(url), cache.root() / "views" / f"{cache.key(url)}.records"
    with _reachable():
        there = store.listing()
        folders = _run_folders(there)
        wanted = [f"{folder}{name}" for folder in folders for name in _RECORDS]
        for name in wanted:
            (root / name).unlink(missing_ok=True)  # a run that has ended has no lease any more
        store.each(lambda name: store.get(name, root / name), [name for name in wanted if name in there])
    return [(join(url, folder), root / folder) for folder in folders]


def _run_folders(names: Iterable[str]) -> list[str]:
    """Returns the folders that have a record, each with a slash at its end; not folders inside a run."""
    found = sorted(name.removesuffix(RECORD) for name in names if f"/{name}".endswith(f"/{RECORD}"))
    return [one for one in found if not any(one.startswith(other) for other in found if other != one)]


@contextlib.contextmanager
def _reachable() -> Iterator[None]:
    """Turns an error of the store into a usage error: nothing has been trained yet."""
    try:
        yield
    except StoreError as error:
        remedy = "check the URL, the network and the credentials in the environment"
        raise UsageError(brief(error), remedy=remedy) from error


@contextlib.contextmanager
def _one_process(url: str, lease: Lease) -> Iterator[None]:
    """Locks the local copy against other processes of this machine."""
    folder = cache.root() / "runs"
    storage.prepare_directory(folder)
    lock = filelock.FileLock(folder / f"{cache.key(url)}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise already_training(url, lease.holder()) from None
    try:
        yield
    finally:
        lock.release()
