"""The manifest of a checkpoint: what was saved, by which run, and a digest of every file.

Orbax detects a truncated file, but not a flipped bit. A checkpoint is intact if every file of its manifest exists with
the same bytes, and the manifest itself is as it was written.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError

NAME = "manifest.json"
WHOLE, IN_PARTS, ON_BASE = 1, 2, 3
"""The formats of checkpoints: all arrays in `state/`, as the first version wrote them; small and divided arrays in
`parts/`; without the frozen weights, which are in a base (`base.py`)."""

FORMAT = ON_BASE
"""The newest format that this program reads; a new one is for what older programs could not read."""

_HASHED_AT_ONCE = 4

Files = Mapping[str, list[Any]]
"""Size and SHA-256 of each file, by its path within the checkpoint."""


class Damaged(Exception):
    """A checkpoint is not as it was written; the text names the difference."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The frozen weights of a model, which a checkpoint refers to instead of containing them.

    Attributes:
      digest: The digest of the weights: sha256 over key, type, shape and bytes of each; see `digests.py`.
      name: What the model is built from, such as a preset, where that provides the weights again; empty if the run
        directory contains them, in `base/`.
      variables: How many there are.
    """

    digest: str
    name: str = ""
    variables: int = 0


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
      step: The training step that was saved.
      run: Id of the run that saved it.
      saved: When it was saved, in seconds since 1970.
      metrics: The finite logs of the step's own evaluation; empty if the step was not evaluated.
      files: Size and SHA-256 of each file, by its path within the checkpoint.
      version: The version of Everstep that wrote it.
      format: The version of the checkpoint format; `write` chooses it.
      base: Where the frozen weights are; None if the checkpoint contains everything.
    """

    step: int
    run: str
    saved: float
    metrics: Mapping[str, Any]
    files: Files
    version: str
    format: int = IN_PARTS
    base: Base | None = None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(size for size, _ in self.files.values())


def write(directory: Path, manifest: Manifest, known: Files | None = None) -> None:
    """Syncs all files and folders below `directory` to disk, and writes the manifest with the digests beside them.

    Args:
      directory: The checkpoint.
      manifest: What else it contains.
      known: Size and SHA-256 of files that other processes have written and synced.

    Raises:
      FileNotFoundError: This process does not see a file of another one.
    """
    known = known or {}
    present = list(_files(directory))
    if missing := sorted(set(known) - set(present)):
        raise FileNotFoundError(f"{missing[0]}, which another process has written, is not there")
    files = {**fingerprints(directory, set(present) - set(known)), **known}
    files = {path: files[path] for path in present}
    number = IN_PARTS if manifest.base is None else ON_BASE
    document = dataclasses.asdict(dataclasses.replace(manifest, files=files, format=number))
    if manifest.base is None:
        del document["base"]
    storage.write_text(directory / NAME, _text(document | {"digest": _digest(document)}))


def read(directory: Path) -> Manifest:
    """Returns the manifest of a checkpoint.

    Raises:
      Damaged: The manifest is missing, or not as it was written.
      UsageError: A newer Everstep wrote it.
      OSError: The manifest cannot be read.
    """
    try:
        data = (directory / NAME).read_bytes()
        document = json.loads(data)
        is_whole = data == _text(document).encode()
        digest = document.pop("digest", None)
    except FileNotFoundError:
        raise Damaged("it has no manifest") from None
    except (ValueError, AttributeError, TypeError) as error:
        raise Damaged(f"its manifest cannot be read ({error})") from None
    if not is_whole or digest != _digest(document):
        raise Damaged("its manifest was changed")
    if document["format"] > FORMAT:
        raise UsageError(
            f"the checkpoint {str(directory)!r} was written by a newer Everstep ({document.get('version')}, format "
            f"{document['format']}; this one reads up to {FORMAT})",
            remedy="upgrade, or choose another directory",
        )
    base = document.pop("base", None)
    return Manifest(**document, base=None if base is None else Base(**base))


def fingerprints(directory: Path, paths: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Syncs files below a directory, by default all, and all folders to disk; returns size and SHA-256 by path."""
    files = {path: directory / path for path in (_files(directory) if paths is None else paths)}
    storage.sync([*files.values(), *(folder for folder, _, _ in os.walk(directory))])
    digests = _digests(files.values())
    return {path: [file.stat().st_size, digests[file]] for path, file in files.items()}


Chosen = Callable[[Files], Collection[str]]
"""Returns some of these files."""


def every(files: Files) -> Collection[str]:
    """Returns all files."""
    return files


def verify(directory: Path, chosen: Chosen = every) -> Manifest:
    """Checks every file of a checkpoint against its manifest; returns the manifest.

    Args:
      directory: The checkpoint.
      chosen: Returns the files whose bytes are checked; of the others, only that they are there, with their size.

    Raises:
      Damaged: A file is missing, has other bytes, or does not belong to the checkpoint; names it. Hidden files, which
        file managers and network file systems leave behind, are ignored.
      UsageError: A newer Everstep wrote it.
      OSError: A file cannot be read.
    """
    manifest = read(directory)
    present = set(_files(directory))
    if missing := sorted(set(manifest.files) - present):
        raise Damaged(f"{missing[0]} is missing")
    if extra := sorted(path for path in present - set(manifest.files) if not Path(path).name.startswith(".")):
        raise Damaged(f"{extra[0]} does not belong to it")
    for path, (size, _) in manifest.files.items():
        if (directory / path).stat().st_size != size:
            raise Damaged(f"{path} has {(directory / path).stat().st_size} bytes, not {size}")
    digests = _digests(directory / path for path in chosen(manifest.files))
    for path, (_, sha256) in manifest.files.items():
        if digests.get(directory / path, sha256) != sha256:
            raise Damaged(f"{path} has other content than was written")
    return manifest


def _files(directory: Path) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name).relative_to(directory).as_posix()
            if path != NAME and not storage.is_temporary(path):
                yield path


def _digests(files: Iterable[Path]) -> dict[Path, str]:
    """Returns the SHA-256 of files, several at once: Python's lock is not held meanwhile."""
    files = list(files)
    with concurrent.futures.ThreadPoolExecutor(_HASHED_AT_ONCE, "everstep-sha256") as threads:
        return dict(zip(files, threads.map(_sha256, files), strict=True))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
