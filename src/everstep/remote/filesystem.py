"""fsspec's file systems, with credentials and endpoints from the environment alone."""

import importlib.util
import logging
import os
from typing import Any

from everstep.errors import UsageError, missing_extra
from everstep.remote.urls import scheme_of

_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
_EMULATOR = "STORAGE_EMULATOR_HOST"
_HUSHED = ("gcsfs", "s3fs", "aiobotocore", "botocore")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the URL's path in it.

    Raises:
      UsageError: The package for this kind of store is missing, or does not take what the environment says.
    """
    import fsspec

    scheme = scheme_of(url)
    package, extra = _EXTRAS.get(scheme, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise missing_extra(package, extra, f"{scheme}://")
    for name in _HUSHED:  # what they say at length is raised as well, and told in one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        raise UsageError(f"{scheme}:// needs a package that is not installed: {error}") from error
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(f"{scheme}:// cannot be used: {str(error).splitlines()[0]}") from error
    return filesystem, str(path).rstrip("/")


def _options(scheme: str) -> dict[str, Any]:
    """Returns what everstep wants otherwise than fsspec: no cached listings, and retries that are its own."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("s3", "s3a"):
        options |= _unless_configured(
            "s3", "config_kwargs", {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 1}}
        )
    if scheme in ("gs", "gcs") and os.environ.get(_EMULATOR):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # an emulator knows no gRPC
        options |= _unless_configured("gs", "token", "anon")
    if scheme in ("file", "local"):
        options = {"auto_mkdir": True}
    return options


def _unless_configured(scheme: str, name: str, value: Any) -> dict[str, Any]:
    import fsspec.config

    schemes = ("gs", "gcs") if scheme == "gs" else (scheme, "s3a")
    return {} if any(name in fsspec.config.conf.get(one, {}) for one in schemes) else {name: value}
