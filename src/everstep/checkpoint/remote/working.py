"""A run whose directory is a URL, as the rest of everstep sees it: a directory of this machine."""

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
    drop_gone,
    fetch_files,
    fetch_newest,
    fetch_others,
    fetch_unit,
)
from everstep.checkpoint.remote.layout import HEARTBEAT, RECORD, read_index, scan
from everstep.checkpoint.remote.lease import LEASE, HeldStore, Lease, LostLease, refused
from everstep.checkpoint.remote.mirror import Mirror, Uploader
from everstep.checkpoint.remote.store import Store, StoreError, brief
from everstep.checkpoint.remote.urls import checked, is_url, join, refuse_lost_slash
from everstep.errors import TrainingError, UsageError

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_RECORDS = (RECORD, HEARTBEAT, LEASE)


@contextlib.contextmanager
def working_copy(model_dir: Any, training: bool = True, follow: bool = False) -> Iterator[Any]:
    """Yields the directory in which a run works: a local directory itself, for a URL a local copy of it.

    The copy has what the store has. While the block runs a thread uploads what is new; its end waits until everything
    is in the store.

    Example:
      with working_copy("s3://bucket/runs/demo") as directory:
          ...  # a run in `directory`

    Args:
      model_dir: A directory, or a URL.
      training: Whether the run is trained; otherwise it is read, from a copy of its own, and nothing is uploaded.
      follow: Whether a reader's copy is kept up to date; then the run may start later.

    Raises:
      UsageError: The URL is invalid, the store cannot be reached, or another machine trains there.
      TrainingError: What the store has is damaged; or the run is done, but the store does not have all of it.
    """
    if not _is_remote(model_dir):
        yield model_dir
    elif training:
        with _trained(checked(model_dir)) as directory:
            yield directory
    else:
        with _followed(checked(model_dir), follow) as directory:
            yield directory


def _is_remote(model_dir: Any) -> bool:
    refuse_lost_slash(model_dir)
    return is_url(model_dir)


@contextlib.contextmanager
def _trained(url: str) -> Iterator[Path]:
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
                with _uploaded(mirror, lease):
                    yield mirror.directory
        finally:
            lease.release()


@contextlib.contextmanager
def _uploaded(mirror: Mirror, lease: Lease) -> Iterator[None]:
    """Uploads while the block runs, and after; an error of the block takes precedence over one of the store."""
    uploader = Uploader(mirror, lease)
    uploader.start()
    try:
        yield
    except BaseException as failure:
        hurry = not isinstance(failure, Exception)  # stopped by a signal
        error = uploader.close(urls.upload_grace() if hurry else None)
        if error is not None:
            logger.error("%s", _incomplete(mirror, error))
        if mirror.was_empty and not mirror.directory.exists():  # a run that ended before its first step leaves nothing
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
    return TrainingError(f"{mirror.store.url} does not have all of the run: {brief(error)}", remedy=remedy)


def local_view(
    url: str, checkpoints: bool = True, wanted: Callable[[list[int]], Collection[int]] = lambda steps: ()
) -> Path:
    """Fetches a read-only copy of a run in a store; returns its local directory.

    Nothing that is written there is uploaded. What has changed is fetched again at each call.

    Args:
      url: The run.
      checkpoints: Whether to fetch the newest checkpoint, and the best weights.
      wanted: Returns, of the steps that the store has, whose checkpoints to fetch beside the newest.

    Raises:
      UsageError: There is no run, or the store cannot be reached.
      TrainingError: What is there is damaged.
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
            raise _NoRun(f"there is no run at {store.url}", remedy="check the URL")
        try:
            _fetch_view(contents, directory, checkpoints)
            _fetch_steps(contents, directory, wanted([unit.step for unit in contents.checkpoints]))
            return
        except TrainingError:
            if not tries_left or read_index(store) == contents.index:
                raise  # the store has not changed meanwhile: it is damaged


def _fetch_view(contents: Contents, directory: Path, checkpoints: bool) -> None:
    directory.mkdir(exist_ok=True)
    fetch_files(contents, directory)
    _drop_files(directory, contents.files())
    if checkpoints:
        staging = _staging(directory)
        fetch_others(contents, directory, staging)
        fetch_newest(contents, directory, staging)
        drop_gone(contents, directory, scan(directory).units)


def _fetch_steps(contents: Contents, directory: Path, steps: Collection[int]) -> None:
    for unit in contents.checkpoints:
        if unit.step in steps and not fetch_unit(contents.store, unit, directory, _staging(directory)):
            place = f"{contents.store.url}/{unit.path}"
            raise TrainingError(f"the checkpoint {place} is damaged", remedy="choose another step")


def _staging(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.staging")


def _drop_files(directory: Path, names: list[str]) -> None:
    """Removes what was fetched before and is not in the store any more; what was written here stays."""
    known = directory.with_name(f"{directory.name}.files.json")
    with contextlib.suppress(UsageError, TypeError):
        for name in set(storage.read_json(known)) - set(names):
            (directory / name).unlink(missing_ok=True)
    storage.write_json(known, names)


@contextlib.contextmanager
def _followed(url: str, follow: bool) -> Iterator[Path]:
    if not follow:
        yield local_view(url)
        return
    directory, ended = _view_directory(url), threading.Event()
    with contextlib.suppress(_NoRun):  # its trainer has not started yet
        local_view(url)
    thread = threading.Thread(target=_keep_up, args=(url, ended), name="everstep-follow", daemon=True)
    thread.start()
    try:
        yield directory
    finally:
        ended.set()


def _keep_up(url: str, ended: threading.Event) -> None:
    while not ended.wait(urls.upload_interval()):
        try:
            local_view(url)
        except _NoRun:
            continue
        except Exception as error:  # retried
            logger.warning("%s cannot be read now (still retrying): %s", url, brief(error))


def local_runs(url: str) -> list[tuple[str, Path]]:
    """Fetches the records of all runs below a URL; returns the URL and a directory of this machine for each.

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
            (root / name).unlink(missing_ok=True)  # of a run that has ended there is no lease any more
        store.each(lambda name: store.get(name, root / name), [name for name in wanted if name in there])
    return [(join(url, folder), root / folder) for folder in folders]


def _run_folders(names: Iterable[str]) -> list[str]:
    """Returns the folders that have a record, each with a slash at its end; not what is inside a run."""
    found = sorted(name.removesuffix(RECORD) for name in names if f"/{name}".endswith(f"/{RECORD}"))
    return [one for one in found if not any(one.startswith(other) for other in found if other != one)]


@contextlib.contextmanager
def _reachable() -> Iterator[None]:
    """Before anything is trained, a store that does not answer is a usage error."""
    try:
        yield
    except StoreError as error:
        remedy = "check the URL, the network and the credentials in the environment"
        raise UsageError(brief(error), remedy=remedy) from error


@contextlib.contextmanager
def _one_process(url: str, lease: Lease) -> Iterator[None]:
    """Inside the block no other process of this machine uses the local copy."""
    folder = cache.root() / "runs"
    storage.prepare_directory(folder)
    lock = filelock.FileLock(folder / f"{cache.key(url)}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise refused(url, lease.holder()) from None
    try:
        yield
    finally:
        lock.release()
