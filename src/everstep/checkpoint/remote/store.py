"""Objects in a store: upload and download with retries, time limits and verified digests.

Most stores report an MD5 of an object: S3 in the ETag (computed from the parts, if there are several), Google in
`md5Hash`. If it matches, an upload is confirmed without reading it back.
"""

import base64
import collections
import dataclasses
import hashlib
import logging
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everstep import redaction, storage
from everstep.checkpoint.remote import urls
from everstep.checkpoint.remote.urls import join, open_filesystem, scheme_of
from everstep.errors import UsageError

_REFUSALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "InvalidRegionError",
}
_GARBLED = {"HTTPClientError", "ClientResponseError"}
"""What clients raise for a response that is not HTTP: it has the status 400, as if the store had refused."""

_STATUS_REFUSED = {400, 401, 403, 405, 410}


class StoreError(Exception):
    """A store refused a request or failed; the text is one line and holds no secret.

    Args:
      text: What failed.
      permanent: Whether a retry will not help: no such bucket, no permission, no credentials.
    """

    def __init__(self, text: str, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent


class Absent(StoreError):
    """The object does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(text, permanent=True)


class Altered(StoreError):
    """An object is not as it was uploaded, even when it is fetched again."""


def is_permanent(error: BaseException) -> bool:
    """Returns whether a retry after this error is useless."""
    if isinstance(error, StoreError):
        return error.permanent
    if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return True
    if type(error).__name__ in _REFUSALS or str(error).startswith("Forbidden"):
        return True
    return type(error).__name__ not in _GARBLED and status_of(error) in _STATUS_REFUSED


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of an error; None if it has none."""
    for candidate in (error, error.__cause__, error.__context__):
        response = getattr(candidate, "response", None)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        for value in (status, getattr(candidate, "status", None) or getattr(candidate, "code", None)):
            if isinstance(value, int | str) and str(value).isdecimal():
                return int(value)
    return None


def brief(error: BaseException) -> str:
    """Returns an error in one line, without secrets."""
    lines = str(error).strip().splitlines()
    text = " ".join(line.strip() for line in lines[:2])[:300]
    if isinstance(error, StoreError):
        return redaction.text(text)
    if isinstance(error, FileNotFoundError):
        return redaction.text(f"there is no such bucket or object ({text})")
    if isinstance(error, TimeoutError) or type(error).__name__ == "FSTimeoutError":
        return "no answer in time"
    return redaction.text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


_CHUNK = 1 << 20
PART = 50 * _CHUNK
"""Size of the parts in which large files are uploaded to S3."""

_MOST_PARTS = 10_000


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """What identifies the content of a file.

    Attributes:
      size: The size in bytes.
      sha256: The SHA-256, hexadecimal.
      md5: The MD5 of the whole file, as bytes.
      etag: The ETag that S3 reports after an upload in parts of `part_size`.
    """

    size: int
    sha256: str
    md5: bytes = b""
    etag: str = ""

    @property
    def entry(self) -> list[Any]:
        """Size and SHA-256, as indexes and manifests have them."""
        return [self.size, self.sha256]


def part_size(size: int) -> int:
    """Returns the size of the parts in which a file of `size` bytes is uploaded."""
    return max(PART, -(-size // _MOST_PARTS))


def fingerprint(path: Path) -> Fingerprint:
    """Reads a file once and returns its fingerprint."""
    size = path.stat().st_size
    whole, digest, parts = hashlib.md5(usedforsecurity=False), hashlib.sha256(), b""
    with open(path, "rb") as file:
        while piece := file.read(part_size(size)):
            whole.update(piece)
            digest.update(piece)
            parts += hashlib.md5(piece, usedforsecurity=False).digest()
    count = len(parts) // 16
    several = f"{hashlib.md5(parts, usedforsecurity=False).hexdigest()}-{count}"
    etag = whole.hexdigest() if size < 2 * part_size(size) else several
    return Fingerprint(size, digest.hexdigest(), whole.digest(), etag)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_confirmed(info: Mapping[str, Any], expected: Fingerprint) -> bool:
    """Returns whether a store's checksum proves that an object is the file; False proves nothing."""
    if info.get("md5Hash"):
        return base64.b64decode(info["md5Hash"]) == expected.md5
    return str(info.get("ETag", "")).strip('"') == expected.etag


def version(info: Mapping[str, Any]) -> str:
    """Returns a text that changes when the object changes: a checksum, a generation, or a time."""
    for name in ("md5Hash", "ETag", "etag", "generation", "mtime", "LastModified", "created"):
        if info.get(name):
            return f"{name}={info[name]}"
    return ""


logger = logging.getLogger(__name__)

Result = TypeVar("Result")

INCOMING = ".everstep/incoming"
"""The folder in the store for objects that are not complete yet."""

_ATTEMPTS, _ATTEMPTS_IF_ALTERED = 4, 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_BYTES_PER_SECOND = 500_000
_AT_ONCE = 4


class Store:
    """The objects below a URL, by names relative to it.

    Every call waits for the network, so no call is made from the thread that runs steps. A call that fails for a
    temporary reason is tried four times with growing pauses; its time limit follows from the object's size.

    Example:
      store = Store("s3://bucket/run")
      store.put("history.csv", path)
      store.get("history.csv", other_path)

    Args:
      url: A URL that was validated by `urls.checked`.

    Attributes:
      url: The URL.

    Raises:
      UsageError: The package for this kind of store is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._root = open_filesystem(url)
        self._local = scheme_of(url) in ("file", "local")
        self._timeout = urls.store_timeout()
        if hasattr(self._filesystem, "retries"):
            self._filesystem.retries = 1  # of s3fs: retries are made here

    def put(self, name: str, source: Path, known: Fingerprint | None = None) -> Fingerprint:
        """Uploads a file, and verifies that the store has it unchanged.

        Raises:
          StoreError: The file could not be uploaded.
        """
        expected = known or fingerprint(source)
        self._retry("upload", name, lambda: self._put(name, source, expected), expected.size)
        return expected

    def put_whole(self, name: str, source: Path, known: Fingerprint | None = None) -> None:
        """Uploads a file atomically: its name never refers to a part of it, even if the process is killed meanwhile.

        The file is uploaded under another name, verified, and copied to its own name inside the store.

        Raises:
          StoreError: The file could not be uploaded; an existing object of this name is unchanged.
        """
        if self._local:  # a local file appears at once
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
        """Creates a small object; returns False if the store reports that it exists."""
        try:
            self._retry("create", name, lambda: self._create(name, data), len(data))
        except FileExistsError:
            return False
        return True

    def get(self, name: str, target: Path, expected: Iterable[list[Any]] = ()) -> None:
        """Downloads an object; the file appears when it is complete and as it was uploaded.

        Args:
          name: The object.
          target: The file; its folder is created.
          expected: Sizes and SHA-256 that it may have; if empty, any content of the size that the store reports.

        Raises:
          Absent: The object does not exist.
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
          Absent: The object does not exist.
          StoreError: It could not be downloaded.
        """
        return self._retry("download", name, lambda: bytes(self._call("cat_file", 0, self._path(name))), 0)

    def info(self, name: str) -> Mapping[str, Any]:
        """Returns what the store reports about an object: its size, checksum and time.

        Raises:
          Absent: The object does not exist.
          StoreError: The store does not answer.
        """
        return self._retry("query", name, lambda: dict(self._call("info", 0, self._path(name))), 0)

    def matching(self, pattern: str) -> dict[str, Mapping[str, Any]]:
        """Returns what the store reports about the objects that match a glob, by name."""
        return self._retry(
            "search", pattern, lambda: self._named(self._call("glob", 0, self._path(pattern), detail=True)), 0
        )

    def listing(self) -> dict[str, Mapping[str, Any]]:
        """Returns what the store reports about every object below the URL, by name; empty if there is none."""
        return self._retry("list", "", self._list, 0)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they exist."""
        for name in names:
            try:
                self._retry("delete", name, lambda name=name: self._call("rm_file", 0, self._path(name)), 0)  # type: ignore[misc]
            except Absent:
                continue

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store."""
        self._retry("copy", source, lambda: self._call("cp_file", 0, self._path(source), self._path(target)), 1 << 30)

    def each(self, call: Callable[[Any], Any], items: Iterable[Any]) -> None:
        """Calls a function for each item, in a few threads; the first failure stops them and is raised.

        The threads do not keep the process from exiting, as those of an executor would.
        """
        waiting, failures = collections.deque(items), list[BaseException]()

        def work() -> None:
            while waiting and not failures:
                try:
                    item = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    call(item)
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

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _put(self, name: str, source: Path, expected: Fingerprint) -> None:
        if self._local:
            _copy_whole(source, Path(self._path(name)))
        else:
            chunks = {"chunksize": part_size(expected.size)} if scheme_of(self.url) in ("s3", "s3a") else {}
            self._call("put_file", expected.size, str(source), self._path(name), **chunks)
        info = self._call("info", 0, self._path(name))
        if int(info.get("size", -1)) != expected.size:
            raise StoreError(f"{name} arrived with {info.get('size')} bytes, not {expected.size}")
        if is_confirmed(info, expected):
            return
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:  # no usable checksum: read it back
            path = Path(folder, "object")
            self._call("get_file", expected.size, self._path(name), str(path))
            if sha256(path) != expected.sha256:
                raise StoreError(f"{name} arrived with other content")

    def _get(self, name: str, target: Path, allowed: list[list[Any]]) -> None:
        with storage.atomic_path(target) as temporary:
            size = max([entry[0] for entry in allowed], default=1 << 30)
            info = {} if allowed else self._call("info", 0, self._path(name))
            self._call("get_file", size, self._path(name), str(temporary))
            received = temporary.stat().st_size
            if allowed and [received, sha256(temporary)] not in allowed:
                raise Altered(f"{join(self.url, name)} is not as it was uploaded: it has other content")
            if not allowed and info.get("size") not in (None, received):
                raise StoreError(f"{name}: {received} bytes arrived, not {info['size']}")

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
        """Calls a method of the file system, with a time limit if the file system supports it."""
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
            except Exception as error:  # each kind of store raises its own
                if what == "create" and status_of(error) == 412:
                    raise FileExistsError(name) from error
                last = _ATTEMPTS if not isinstance(error, Altered) else _ATTEMPTS_IF_ALTERED
                if is_permanent(error) or attempt >= last:
                    raise self._failure(what, name, error) from error
                logger.debug("%s %s: %s; retrying", what, name, brief(error))
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)
        raise StoreError("unreachable")

    def _failure(self, what: str, name: str, error: Exception) -> StoreError:
        if isinstance(error, Altered):
            return error
        place = join(self.url, name)
        if isinstance(error, FileNotFoundError) and what in ("download", "delete", "query"):
            return Absent(f"there is no {place}")
        return StoreError(f"cannot {what} {place}: {brief(error)}", is_permanent(error))


def _is_safe(name: str) -> bool:
    """Whether a name that a store reports stays below its folder when it is fetched."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _copy_whole(source: Path, target: Path) -> None:
    """Copies a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)
