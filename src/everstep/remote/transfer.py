"""One object there and back: with retries, time limits, and digests that are checked."""

import collections
import logging
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everstep import storage
from everstep.errors import UsageError
from everstep.remote import settings
from everstep.remote.checksums import Fingerprint, fingerprint, is_confirmed, part_size, sha256
from everstep.remote.failures import Absent, Altered, StoreError, brief, is_permanent, status_of
from everstep.remote.filesystem import open_filesystem
from everstep.remote.urls import join, scheme_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

INCOMING = ".everstep/incoming"
"""Where objects are until they are complete."""

_ATTEMPTS, _ATTEMPTS_AT_OTHER_CONTENT = 4, 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_BYTES_PER_SECOND = 500_000
_AT_ONCE = 4


class Store:
    """A place in a store, and the objects below it, by names relative to it.

    Everything here waits for the network, so nothing of it is called where steps are computed. What fails for a
    reason that may pass is tried four times with growing pauses; no call takes longer than its size explains.

    Example:
      store = Store("s3://bucket/run")
      store.put("history.csv", path)
      store.get("history.csv", other_path)

    Args:
      url: The place; checked by `urls.checked`.

    Attributes:
      url: The same.

    Raises:
      UsageError: The package for this kind of store is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._root = open_filesystem(url)
        self._local = scheme_of(url) in ("file", "local")
        self._timeout = settings.timeout()
        if hasattr(self._filesystem, "retries"):
            self._filesystem.retries = 1  # of s3fs; they are counted here

    def put(self, name: str, source: Path, known: Fingerprint | None = None) -> Fingerprint:
        """Uploads a file, and makes sure that the store has it as it is.

        Raises:
          StoreError: It could not be uploaded.
        """
        expected = known or fingerprint(source)
        self._retry("upload", name, lambda: self._put(name, source, expected), expected.size)
        return expected

    def put_whole(self, name: str, source: Path, known: Fingerprint | None = None) -> None:
        """Uploads a file so that its name never stands for a part of it, whoever dies meanwhile, here or on the way.

        It goes to another name, is checked there, and takes its own by a copy inside the store.

        Raises:
          StoreError: It could not be uploaded; what had the name before is as it was.
        """
        if self._local:  # where a file appears at once
            self.put(name, source, known)
            return
        self.put(f"{INCOMING}/{name}", source, known)
        self.copy(f"{INCOMING}/{name}", name)
        self.delete([f"{INCOMING}/{name}"])

    def put_bytes(self, name: str, data: bytes) -> None:
        """Uploads a small object, as `put_whole` does."""
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder, "object")
            path.write_bytes(data)
            self.put_whole(name, path)

    def create(self, name: str, data: bytes) -> bool:
        """Makes a small object; returns False if there is one of that name, as far as the store can tell."""
        try:
            self._retry("create", name, lambda: self._create(name, data), len(data))
        except FileExistsError:
            return False
        return True

    def get(self, name: str, target: Path, expected: Iterable[list[Any]] = ()) -> None:
        """Downloads an object; the file appears when it is complete and as it was uploaded.

        Args:
          name: The object.
          target: The file; its folder is made.
          expected: Size and SHA-256 that it may have; none: any that the store says it has.

        Raises:
          Absent: There is none.
          Altered: It has other content.
          StoreError: It could not be downloaded.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        allowed = list(expected)
        size = max([entry[0] for entry in allowed], default=0)
        self._retry("download", name, lambda: self._get(name, target, allowed), size or 1 << 30)

    def get_bytes(self, name: str) -> bytes:
        """Downloads a small object.

        Raises:
          Absent: There is none.
          StoreError: It could not be downloaded.
        """
        return self._retry("download", name, lambda: bytes(self._call("cat_file", 0, self._path(name))), 0)

    def info(self, name: str) -> Mapping[str, Any]:
        """Returns what the store says of an object.

        Raises:
          Absent: There is none.
          StoreError: The store does not answer.
        """
        return self._retry("look at", name, lambda: dict(self._call("info", 0, self._path(name))), 0)

    def matching(self, pattern: str) -> dict[str, Mapping[str, Any]]:
        """Returns what the store says of the objects that match a glob, by name."""
        return self._retry(
            "look for", pattern, lambda: self._named(self._call("glob", 0, self._path(pattern), detail=True)), 0
        )

    def listing(self) -> dict[str, Mapping[str, Any]]:
        """Returns what the store says of every object below the place, by name; empty if there is none."""
        return self._retry("list", "", self._list, 0)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are fine."""
        for name in names:
            try:
                self._retry("delete", name, lambda name=name: self._call("rm_file", 0, self._path(name)), 0)  # type: ignore[misc]
            except Absent:
                continue

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store."""
        self._retry("copy", source, lambda: self._call("cp_file", 0, self._path(source), self._path(target)), 1 << 30)

    def each(self, call: Callable[[Any], Any], things: Iterable[Any]) -> None:
        """Calls something for each thing, a few at once; after a failure no more are begun, and it is raised.

        The threads do not keep a process that wants to end from ending, as those of an executor would.
        """
        waiting, failures = collections.deque(things), list[BaseException]()

        def work() -> None:
            while waiting and not failures:
                try:
                    thing = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    call(thing)
                except BaseException as error:
                    failures.append(error)

        names = [f"everstep-transfer-{number}" for number in range(min(_AT_ONCE, len(waiting)))]
        threads = [threading.Thread(target=work, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    # -- one try -----------------------------------------------------------------------------------------------------

    def _put(self, name: str, source: Path, expected: Fingerprint) -> None:
        if self._local:
            _copy_whole(source, Path(self._path(name)))
        else:
            chunks = {"chunksize": part_size(expected.size)} if scheme_of(self.url) in ("s3", "s3a") else {}
            self._call("put_file", expected.size, str(source), self._path(name), **chunks)
        info = self._call("info", 0, self._path(name))
        if int(info.get("size", -1)) != expected.size:
            raise StoreError(f"{name} arrived with {info.get('size')} bytes, not {expected.size}")
        if not is_confirmed(info, expected):
            self._read_again(name, expected)

    def _read_again(self, name: str, expected: Fingerprint) -> None:
        """Reads an upload back where the store has no word for its content."""
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder, "object")
            self._call("get_file", expected.size, self._path(name), str(path))
            if sha256(path) != expected.sha256:
                raise StoreError(f"{name} arrived with other content")

    def _get(self, name: str, target: Path, allowed: list[list[Any]]) -> None:
        with storage.atomic_path(target) as temporary:
            size = max([entry[0] for entry in allowed], default=1 << 30)
            told = {} if allowed else self._call("info", 0, self._path(name))
            self._call("get_file", size, self._path(name), str(temporary))
            has = temporary.stat().st_size
            if allowed and [has, sha256(temporary)] not in allowed:
                raise Altered(f"{join(self.url, name)} is not as it was uploaded: it has other content")
            if not allowed and told.get("size") not in (None, has):
                raise StoreError(f"{name}: {has} bytes came, not {told['size']}")

    def _create(self, name: str, data: bytes) -> None:
        if self._local:
            path = Path(self._path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
        else:
            self._call("pipe_file", 0, self._path(name), data, mode="create")

    def _list(self) -> dict[str, Mapping[str, Any]]:
        try:
            found = self._call("find", 0, self._root, detail=True)
        except FileNotFoundError:
            return {}
        return self._named(found)

    def _named(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        start = len(self._root.lstrip("/")) + 1
        named = {path.lstrip("/")[start:]: info for path, info in found.items() if info.get("type") != "directory"}
        return {name: info for name, info in named.items() if _is_safe(name) and not storage.is_temporary(name)}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _call(self, method: str, size: int, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the file system, with a time limit where it can have one."""
        if self._filesystem.async_impl:
            kwargs["timeout"] = self._timeout + size / _BYTES_PER_SECOND
        return getattr(self._filesystem, method)(*args, **kwargs)

    def _retry(self, what: str, name: str, call: Callable[[], Result], size: int) -> Result:
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return call()
            except (FileExistsError, UsageError):
                raise
            except Exception as error:  # each store has its own kinds
                if what == "create" and status_of(error) == 412:
                    raise FileExistsError(name) from error
                last = _ATTEMPTS if not isinstance(error, Altered) else _ATTEMPTS_AT_OTHER_CONTENT
                if is_permanent(error) or attempt >= last:
                    raise self._told(what, name, error) from error
                logger.debug("%s %s: %s; trying again", what, name, brief(error))
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise StoreError("unreachable")

    def _told(self, what: str, name: str, error: Exception) -> StoreError:
        if isinstance(error, Altered):
            return error
        place = join(self.url, name)
        if isinstance(error, FileNotFoundError) and what in ("download", "delete", "look at"):
            return Absent(f"there is no {place}")
        return StoreError(f"cannot {what} {place}: {brief(error)}", is_permanent(error))


def _is_safe(name: str) -> bool:
    """Whether a name that a store tells stays below a folder of this machine."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _copy_whole(source: Path, target: Path) -> None:
    """Copies a file so that it appears when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)
