"""URLs of stores: which text is one, and which ones are refused."""

import re
from collections.abc import Iterable
from typing import Any

from everstep.errors import UsageError, nearest

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(s3|s3a|gs|gcs|az|abfs|memory):/[^/]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_BUCKETS = ("s3", "s3a", "gs", "gcs")


def is_url(path: Any) -> bool:
    """Returns whether a path names a place in a store: `s3://bucket/run`; a folder of this machine is none."""
    return isinstance(path, str) and _SCHEME.match(path) is not None


def scheme_of(url: str) -> str:
    """Returns the part before `://`, in small letters; empty if there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def join(url: str, *names: str) -> str:
    """Returns the URL of something below a URL."""
    return "/".join([url.rstrip("/"), *(name.strip("/") for name in names if name)])


def known_schemes() -> list[str]:
    """Returns the schemes that fsspec has an implementation for, installed or not."""
    import fsspec

    return sorted({*fsspec.available_protocols(), *fsspec.registry})


def checked(url: Any, key: str = "model_dir") -> str:
    """Returns a URL, without slashes at its end, that can be a place in a store.

    Args:
      url: What a user has written.
      key: Where, for the message.

    Raises:
      UsageError: It holds credentials, its scheme is unknown, or it is malformed. Credentials are not repeated.
    """
    text = str(url)
    scheme, rest = scheme_of(text), text.partition("://")[2]
    _refuse_credentials(scheme, rest, key)
    if "::" in text:
        raise UsageError(f"{key}: received {text!r}; chained URLs are not supported: name the place itself")
    if scheme not in known_schemes():
        raise UsageError(f"{key}: received {text!r}; unknown kind of store {scheme!r}; {nearest(scheme, _common())}")
    _check_parts(scheme, rest.rstrip("/").split("/"), text, key)
    return f"{scheme}://{rest.rstrip('/')}"


def refuse_lost_slash(path: Any, key: str = "model_dir") -> None:
    """Refuses `s3:/bucket/run`: what becomes of a URL in a `Path`.

    Raises:
      UsageError: It is that.
    """
    text = str(path)
    if _LOST_SLASH.match(text):
        whole = text.replace(":/", "://", 1)
        raise UsageError(f"{key}: received {text!r}, which lacks a slash: write {whole!r}, as text (a Path loses one)")


def _refuse_credentials(scheme: str, rest: str, key: str) -> None:
    if "@" in rest.partition("/")[0] or (scheme in _BUCKETS and "?" in rest):
        raise UsageError(
            f"{key}: received a URL {scheme}://… with credentials or parameters in it: leave them out; credentials "
            "come from the environment"
        )


def _check_parts(scheme: str, parts: list[str], text: str, key: str) -> None:
    if scheme in _BUCKETS and not _BUCKET.fullmatch(parts[0]):
        raise UsageError(f"{key}: received {text!r}; {parts[0]!r} is no name of a bucket: {scheme}://BUCKET/PATH")
    if not any(parts):
        raise UsageError(f"{key}: received {text!r}, which names no place: {scheme}://PATH")
    if {".", ".."} & set(parts) or "" in parts[1:]:
        raise UsageError(f"{key}: received {text!r}; a part of it is empty, '.' or '..': write it out")


def _common() -> Iterable[str]:
    return ("s3", "gs", "gcs", "az", "abfs", "file", "memory", "hdfs", "sftp")
