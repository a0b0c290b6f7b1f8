"""Tokenized documents, in memory-mapped files that later runs, and other processes, find again.

    <cache>/<fingerprint>/tokens.bin      the tokens of all documents, uint16 or uint32
    <cache>/<fingerprint>/offsets.npy     where each document begins, and the end of the last
    <cache>/<fingerprint>/counts.bin      for each token whether it counts in the loss, uint8; only if some do not
    <cache>/<fingerprint>/info.json       how many there are, and what they were made of

The fingerprint covers the tokenizer, the columns, the template, and path, size and time of change of every file. A
folder with this name is complete: it is renamed when everything is written.
"""

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from everstep import redaction, storage
from everstep.checkpoint.remote import cache
from everstep.data.formats.numpy_files import NumpyFile
from everstep.data.records import Records
from everstep.data.text.documents import DocumentReader
from everstep.errors import UsageError
from everstep.notebook import people_stream

_VERSION = 1  # of the format, and of how documents become tokens
_ROWS = 1024  # tokenized at once
_PROGRESS_SECONDS = 10.0


class TokenStore(NamedTuple):
    """Tokenized documents; document n is row n of the records.

    Attributes:
      tokens: The tokens of all documents, one after the other.
      offsets: Where each document begins, and the end of the last.
      counts: For each token whether it counts in the loss; None if all do.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    counts: np.ndarray | None

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each document."""
        return np.diff(self.offsets)


def tokenized(
    records: Records, reader: DocumentReader, vocabulary: int, folder: str = "", *, identity: str = ""
) -> TokenStore:
    """Returns the tokens of all rows: those of the cache, or new ones, which the cache then keeps.

    Processes that need the same tokens wait for the first one.

    Args:
      records: The rows.
      reader: Makes documents of them.
      vocabulary: How many tokens there are.
      folder: Where tokens are kept; empty for `text` below `$EVERSTEP_CACHE_DIR`.
      identity: What the rows are, if they come from no files.

    Raises:
      UsageError: A row cannot be read, or the folder cannot be written to.
    """
    root = Path(folder) if folder else cache.root() / "text"
    target = root / _fingerprint(records, reader, vocabulary, identity)
    if not (target / "info.json").is_file():
        storage.prepare_directory(root)
        with filelock.FileLock(root / f".{target.name}.lock"):
            if not (target / "info.json").is_file():
                with storage.atomic_path(target) as temporary:
                    temporary.mkdir()
                    _write(records, reader, vocabulary, temporary)
    return _open(target, vocabulary)


def _fingerprint(records: Records, reader: DocumentReader, vocabulary: int, identity: str) -> str:
    files = [(os.path.abspath(file), (found := os.stat(file)).st_size, found.st_mtime_ns) for file in records.files]
    parts = [_VERSION, len(records), reader.fingerprint, str(_dtype(vocabulary)), identity, files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _dtype(vocabulary: int) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)


def _open(folder: Path, vocabulary: int) -> TokenStore:
    """Maps the files of a complete folder."""
    try:
        with NumpyFile(folder / "offsets.npy") as file:
            offsets = file.read()
        total = int(offsets[-1])
        if not total:
            return TokenStore(np.zeros(0, _dtype(vocabulary)), offsets, None)
        tokens = np.memmap(folder / "tokens.bin", _dtype(vocabulary), "r", shape=(total,))
        counts = folder / "counts.bin"
        return TokenStore(tokens, offsets, np.memmap(counts, bool, "r", shape=(total,)) if counts.exists() else None)
    except (OSError, ValueError) as error:
        raise UsageError(f"is damaged: {error}", key="token_cache", received=str(folder), remedy="remove it") from None


def _write(records: Records, reader: DocumentReader, vocabulary: int, folder: Path) -> None:
    """Tokenizes all rows into files of a folder."""
    lengths: list[int] = []
    progress = _Progress(len(records))
    began = time.monotonic()
    with contextlib.ExitStack() as files:
        tokens = files.enter_context(open(folder / "tokens.bin", "xb"))
        counts = None if reader.all_count else files.enter_context(open(folder / "counts.bin", "xb"))
        for start in range(0, len(records), _ROWS):
            documents = reader.read(records, range(start, min(start + _ROWS, len(records))))
            tokens.write(np.concatenate([document.tokens for document in documents]).astype(_dtype(vocabulary)).data)
            if counts is not None:
                counts.write(np.concatenate([document.counts for document in documents]).astype(bool).data)
            lengths += [len(document.tokens) for document in documents]
            progress.add(len(documents))
        for file in (tokens, counts):
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
    offsets = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]).astype(np.int64)
    np.save(folder / "offsets.npy", offsets)
    seconds = time.monotonic() - began
    progress.done(int(offsets[-1]), seconds)
    info: dict[str, Any] = {"documents": len(lengths), "tokens": int(offsets[-1]), "seconds": round(seconds, 3)}
    storage.write_json(folder / "info.json", {**info, "files": list(records.files)})


class _Progress:
    """Prints from time to time how much is tokenized, if it takes long."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0
        self._printed = time.monotonic()
        self._told = False

    def add(self, documents: int) -> None:
        self._done += documents
        if time.monotonic() - self._printed >= _PROGRESS_SECONDS:
            self._printed, self._told = time.monotonic(), True
            _print(f"tokenized {self._done:,} of {self._count:,} documents")

    def done(self, tokens: int, seconds: float) -> None:
        if self._told:
            _print(f"tokenized {self._count:,} documents, {tokens:,} tokens, in {seconds:.0f} s")


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(redaction.text(line), file=people_stream(), flush=True)
