"""A result that others read from a store: an exported model, a table. It is whole there, or not to be seen.

A store replaces a single object at once, a folder never. So of a folder the files that lie on top go last, and among
them the one that makes it what it is (`saved_model.pb`, `run.json`) comes last of all and is removed first.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from everstep.errors import TrainingError, UsageError
from everstep.remote import settings
from everstep.remote.failures import StoreError, brief
from everstep.remote.layout import OWN
from everstep.remote.transfer import Store
from everstep.remote.urls import checked
from everstep.storage import PathLike, is_temporary

_MARKERS = ("manifest.json", "job_meta.json", "saved_model.pb", "run.json")
_PROBE = ".everstep-probe"
_PAUSE = 1.0


def publish(source: PathLike, url: str) -> None:
    """Uploads a file or a folder, each file checked; a store that fails is tried again for a while.

    Args:
      source: A file, or a folder; hidden files of it stay here.
      url: Its own name in the store, not that of a folder to put it in. What a folder had there before goes.

    Raises:
      UsageError: The URL is bad, or there is nothing to upload.
      TrainingError: The store did not take it.
    """
    path, place = Path(source), checked(url, "url")
    folder, _, name = place.rpartition("/")
    if path.is_dir():
        _patiently(place, lambda: _publish_folder(path, Store(place)))
    elif path.is_file():
        _patiently(place, lambda: Store(folder).put_whole(name, path))
    else:
        raise UsageError(f"there is no file or folder {str(path)!r} to publish")


def require_writable(url: str, key: str) -> None:
    """Writes a small object and removes it: what is to be put there after hours of training shall not fail then.

    Raises:
      UsageError: The store cannot be reached, or does not let us write.
    """
    store = Store(url)
    try:
        store.put_bytes(_PROBE, b"")
        store.delete([_PROBE])
    except StoreError as error:
        raise UsageError(
            f"{key}: received {url!r}, which cannot be written to: {brief(error)}; check the URL and the credentials"
        ) from error


def _publish_folder(path: Path, store: Store) -> None:
    names = [entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file()]
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    before = [name for name in store.listing() if not name.startswith(f"{OWN}/")]
    store.delete(name for name in reversed(_MARKERS) if name in before)
    for group in _in_order(shown):
        store.each(lambda name: store.put_whole(name, path / name), group)
    store.delete(name for name in before if name not in shown)


def _in_order(names: Iterable[str]) -> list[list[str]]:
    """Returns names in groups: those in folders, those on top, and then each marker."""
    known = [name for name in names if not is_temporary(name)]
    markers = [[marker] for marker in _MARKERS if marker in known]
    rest = [name for name in known if name not in _MARKERS]
    return [[name for name in rest if "/" in name], [name for name in rest if "/" not in name], *markers]


def _patiently(url: str, call: Callable[[], object]) -> None:
    deadline = time.monotonic() + settings.patience()
    while True:
        try:
            call()
            return
        except StoreError as error:
            if error.permanent or time.monotonic() >= deadline:
                raise TrainingError(f"{url} was not written: {brief(error)}; the same command tries again") from error
            time.sleep(_PAUSE)
