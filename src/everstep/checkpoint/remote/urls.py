"""URLs of stores: which are valid, and how fsspec opens them.

Credentials, endpoints and time limits come only from the environment: they belong to a machine and its network.
"""

import importlib.util
import logging
import math
import os
import re
from typing import Any

from everstep.errors import UsageError, missing_extra, nearest

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(s3|s3a|gs|gcs|az|abfs|memory):/[^/]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_BUCKETS = ("s3", "s3a", "gs", "gcs")
_COMMON_SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "file", "memory", "hdfs", "sftp")


def is_url(path: Any) -> bool:
    """Returns whether a path is a URL, such as `s3://bucket/run`."""
    return isinstance(path, str) and _SCHEME.match(path) is not None


def scheme_of(url: str) -> str:
    """Returns the part before `://` in lower case; empty if there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def join(url: str, *names: str) -> str:
    """Returns a URL with names appended."""
    return "/".join([url.rstrip("/"), *(name.strip("/") for name in names if name)])


def known_schemes() -> list[str]:
    """Returns the schemes that fsspec has an implementation for, installed or not."""
    import fsspec

    return sorted({*fsspec.available_protocols(), *fsspec.registry})


def checked(url: Any, key: str = "model_dir") -> str:
    """Returns a validated URL, without slashes at its end.

    Args:
      url: What the user passed.
      key: The argument it was passed as, for errors.

    Raises:
      UsageError: The URL holds credentials, has an unknown scheme, or is malformed. Credentials are never repeated.
    """
    text = str(url)
    scheme, rest = scheme_of(text), text.partition("://")[2]
    _refuse_credentials(scheme, rest, key)
    if "::" in text:
        raise UsageError("chained URLs are not supported", key=key, received=text, remedy="pass the inner URL")
    if scheme not in known_schemes():
        raise UsageError(
            f"unknown kind of store {scheme!r}", key=key, received=text, remedy=nearest(scheme, _COMMON_SCHEMES)
        )
    parts = rest.rstrip("/").split("/")
    if scheme in _BUCKETS and not _BUCKET.fullmatch(parts[0]):
        reason = f"{parts[0]!r} is not the name of a bucket"
        raise UsageError(reason, key=key, received=text, remedy=f"{scheme}://BUCKET/PATH")
    if not any(parts):
        raise UsageError("has no path", key=key, received=text, remedy=f"{scheme}://PATH")
    if {".", ".."} & set(parts) or "" in parts[1:]:
        raise UsageError("a part of it is empty, '.' or '..'", key=key, received=text, remedy="write the full path")
    return f"{scheme}://{rest.rstrip('/')}"


def refuse_lost_slash(path: Any, key: str = "model_dir") -> None:
    """Refuses `s3:/bucket/run`, which is what `Path` turns a URL into.

    Raises:
      UsageError: A slash is missing.
    """
    text = str(path)
    if _LOST_SLASH.match(text):
        whole = text.replace(":/", "://", 1)
        remedy = f"pass {whole!r} as a string (a Path drops a slash)"
        raise UsageError("lacks a slash", key=key, received=text, remedy=remedy)


def _refuse_credentials(scheme: str, rest: str, key: str) -> None:
    if "@" in rest.partition("/")[0] or (scheme in _BUCKETS and "?" in rest):
        raise UsageError(
            "must not contain credentials or parameters",
            key=key,
            received=f"{scheme}://…",  # the rest may hold a secret
            remedy="remove them; credentials come from the environment",
        )


# -- file systems ------------------------------------------------------------------------------------------------------

_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
_EMULATOR = "STORAGE_EMULATOR_HOST"
_SILENCED = ("gcsfs", "s3fs", "aiobotocore", "botocore")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the URL's path in it.

    Raises:
      UsageError: The package for this kind of store is missing, or refuses the settings of the environment.
    """
    import fsspec

    scheme = scheme_of(url)
    package, extra = _EXTRAS.get(scheme, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise missing_extra(package, extra, f"{scheme}://")
    for name in _SILENCED:  # they raise what they log
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        raise UsageError(f"needs a package that is not installed: {error}", key=f"{scheme}://") from error
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(f"cannot be used: {str(error).splitlines()[0]}", key=f"{scheme}://") from error
    return filesystem, str(path).rstrip("/")


def _options(scheme: str) -> dict[str, Any]:
    """Returns the options that differ from fsspec's defaults: listings are not cached, retries are made here."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        options |= _unless_configured(
            "s3", "config_kwargs", {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 1}}
        )
    if scheme in ("gs", "gcs") and os.environ.get(_EMULATOR):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # an emulator has no gRPC
        options |= _unless_configured("gs", "token", "anon")
    if scheme in ("file", "local"):
        options = {"auto_mkdir": True}
    return options


def _unless_configured(scheme: str, name: str, value: Any) -> dict[str, Any]:
    import fsspec.config

    schemes = ("gs", "gcs") if scheme == "gs" else (scheme, "s3a")
    return {} if any(name in fsspec.config.conf.get(one, {}) for one in schemes) else {name: value}


# -- time limits -------------------------------------------------------------------------------------------------------

INTERVAL = "EVERSTEP_UPLOAD_SECONDS"
"""Seconds between two uploads of logs, and between two renewals of the lease."""

PATIENCE = "EVERSTEP_UPLOAD_PATIENCE"
"""Seconds that the end of a run retries while the store accepts nothing."""

TIMEOUT = "EVERSTEP_STORE_TIMEOUT"
"""Seconds that a store may take to answer; large objects get more, by their size."""


def store_timeout() -> float:
    """Returns the seconds that a store may take to answer."""
    return _seconds(TIMEOUT, 20.0)


def upload_interval() -> float:
    """Returns the seconds between two uploads of files other than checkpoints."""
    return _seconds(INTERVAL, 15.0)


def upload_patience() -> float:
    """Returns the seconds that the end of a run retries while the store accepts nothing."""
    return _seconds(PATIENCE, 60.0)


def upload_grace() -> float:
    """Returns the seconds for uploads after a signal: cloud providers give 30 seconds for everything."""
    return min(upload_patience(), 20.0)


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86400:
        raise UsageError("expected seconds, from 0.1 to 86400", key=name, received=text)
    return seconds
