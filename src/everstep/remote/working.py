"""A run whose directory is a URL, as the rest of everstep sees it: a directory of this machine."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock

from everstep import storage
from everstep.errors import TrainingError, UsageError
from everstep.remote import cache, settings
from everstep.remote import index as indexes
from everstep.remote.cache import Copy
from everstep.remote.failures import StoreError, brief
from everstep.remote.fetching import Contents, drop_gone, fetch_files, fetch_newest, fetch_others, fetch_unit
from everstep.remote.held import HeldStore
from everstep.remote.layout import scan
from everstep.remote.lease import NAME as LEASE
from everstep.remote.lease import Lease, LostLease
from everstep.remote.mirror import Mirror
from everstep.remote.transfer import Store
from everstep.remote.uploader import Uploader
from everstep.remote.urls import checked, is_url, join, refuse_lost_slash

logger = logging.getLogger(__name__)

_LOOKS = 5
_RECORDS = ("run.json", ".heartbeat", LEASE)


@contextlib.contextmanager
def working_copy(model_dir: Any, training: bool = True, follow: bool = False) -> Iterator[Any]:
    """Yields the directory in which a run works; for one of this machine, that one.

    For a URL it is a local copy, which has what the store has. While the block runs a thread uploads what is new;
    its end waits until all is in the store.

    Example:
      with working_copy("s3://bucket/runs/demo") as directory:
          ...  # a run in `directory`

    Args:
      model_dir: A directory, or a URL.
      training: Whether the run is trained; others only look on, at a copy of their own, and upload nothing.
      follow: Whether who looks on wants to see what comes meanwhile; a run that is not there yet may come, too.

    Raises:
      UsageError: The URL is bad, the store cannot be reached, or another machine trains there.
      TrainingError: What the store has is damaged; or the run is done, but the store has not all of it.
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
    lease = Lease(Store(url), settings.interval())
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
    """Uploads while the block runs, and after; how the block ends counts more than what the store says to it."""
    uploader = Uploader(mirror, lease)
    uploader.start()
    try:
        yield
    except BaseException as failure:
        hurry = not isinstance(failure, Exception)  # told to end, by a signal
        error = uploader.close(settings.grace() if hurry else None)
        if error is not None:
            logger.error("%s", _not_all(mirror, error))
        _forget_if_given_up(mirror)
        raise
    if (error := uploader.close()) is not None:
        raise TrainingError(_not_all(mirror, error)) from error


def _not_all(mirror: Mirror, error: Exception) -> str:
    start = f"{mirror.store.url} does not have all of the run: {brief(error)}"
    if isinstance(error, LostLease):
        return f"{start}; what was computed here since is in {str(mirror.directory)!r} and is not uploaded"
    return f"{start}; the rest waits in {str(mirror.directory)!r}: the same command on this machine uploads it"


def _forget_if_given_up(mirror: Mirror) -> None:
    """A run that ended before its first step leaves nothing behind, here or there."""
    if mirror.was_empty and not mirror.directory.exists():
        with contextlib.suppress(StoreError):
            mirror.forget()


def local_view(
    url: str, checkpoints: bool = True, wanted: Callable[[list[int]], Collection[int]] = lambda steps: ()
) -> Path:
    """Fetches what a store has of a run, to look at; returns the directory of this machine where it is.

    Nothing that is written there gets to the store. It is fetched again, as far as it has changed, at each call.

    Args:
      url: The run.
      checkpoints: Whether to fetch the newest checkpoint, and the best weights.
      wanted: Says, of the steps that the store has, whose checkpoints to fetch beside the newest.

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
    for tries_left in reversed(range(_LOOKS)):
        contents = Contents(store)
        if contents.is_empty:
            raise _NoRun(f"there is no run at {store.url}: check the URL")
        try:
            _fetch_view(contents, directory, checkpoints)
            _fetch_steps(contents, directory, wanted([unit.step for unit in contents.checkpoints]))
            return
        except TrainingError:
            if not tries_left or indexes.read(store) == contents.index:
                raise  # nobody has written meanwhile: it is damaged


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
            raise TrainingError(f"the checkpoint {contents.store.url}/{unit.path} is damaged: choose another step")


def _staging(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.staging")


def _drop_files(directory: Path, names: list[str]) -> None:
    """Removes what was fetched at another time and is not in the store any more; what was written here stays."""
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
    while not ended.wait(settings.interval()):
        try:
            local_view(url)
        except _NoRun:
            continue
        except Exception as error:  # the next time, perhaps
            logger.warning("%s cannot be looked at now (still trying): %s", url, brief(error))


def local_runs(url: str) -> list[tuple[str, Path]]:
    """Fetches the records of all runs below a URL; returns the URL and a directory of this machine for each.

    A directory has `run.json`, and of a run that is under way its heartbeat and its lease; see `lease.is_renewed`.

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
    found = sorted(name.removesuffix("run.json") for name in names if f"/{name}".endswith("/run.json"))
    return [one for one in found if not any(one.startswith(other) for other in found if other != one)]


@contextlib.contextmanager
def _reachable() -> Iterator[None]:
    """Before anything is trained, a store that does not answer is a request that cannot be carried out."""
    try:
        yield
    except StoreError as error:
        raise UsageError(
            f"{brief(error)}: check the URL, the network and the credentials in the environment"
        ) from error


@contextlib.contextmanager
def _one_process(url: str, lease: Lease) -> Iterator[None]:
    """The local copy is this process's alone."""
    folder = cache.root() / "runs"
    storage.prepare_directory(folder)
    lock = filelock.FileLock(folder / f"{cache.key(url)}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(f"{url} is being trained by {lease.holder()}: wait for it, or name another place") from None
    try:
        yield
    finally:
        lock.release()
