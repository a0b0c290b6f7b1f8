"""What a store says of an object, against the file that was uploaded.

Most stores tell an MD5 of what they hold: S3 in the ETag (of the parts, where there are several), Google in
`md5Hash`. Where that fits, the object is as it should be, and nothing has to be read again.
"""

import base64
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20
PART = 50 * _CHUNK
"""Size of the parts in which large files go to S3."""

_MOST_PARTS = 10_000


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """What identifies the content of a file.

    Attributes:
      size: In bytes.
      sha256: Hexadecimal.
      md5: Of the whole, as bytes.
      etag: What S3 calls it when it was uploaded in parts of `part_size`.
    """

    size: int
    sha256: str
    md5: bytes = b""
    etag: str = ""

    @property
    def entry(self) -> list[Any]:
        """Size and SHA-256, as they stand in indexes and manifests."""
        return [self.size, self.sha256]


def part_size(size: int) -> int:
    """Returns the size of the parts of a file."""
    return max(PART, -(-size // _MOST_PARTS))


def fingerprint(path: Path) -> Fingerprint:
    """Reads a file once, and returns all that identifies its content."""
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
    """Returns the digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_confirmed(info: Mapping[str, Any], expected: Fingerprint) -> bool:
    """Returns whether what a store says of an object proves that it is the file; if not, it still may be."""
    if info.get("md5Hash"):
        return base64.b64decode(info["md5Hash"]) == expected.md5
    return str(info.get("ETag", "")).strip('"') == expected.etag


def version(info: Mapping[str, Any]) -> str:
    """Returns what changes when an object does: a checksum, a generation, or its time."""
    for name in ("md5Hash", "ETag", "etag", "generation", "mtime", "LastModified", "created"):
        if info.get(name):
            return f"{name}={info[name]}"
    return ""
