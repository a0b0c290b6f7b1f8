"""Simulated machines that train: each has its own disk, and all share a store."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.remote.cache import VARIABLE, Copy
from everstep.checkpoint.remote.mirror import Mirror
from everstep.checkpoint.remote.store import INCOMING, Store, StoreError


class Machine:
    """A machine's disk with the working copy of a run, and methods that write what training would write."""

    def __init__(self, disk: Path, url: str) -> None:
        self.disk, self.url = disk, url
        with self._in_use():
            self.mirror = Mirror(Store(url), Copy(url))

    @property
    def directory(self) -> Path:
        return self.mirror.directory

    def fetch(self) -> None:
        with self._in_use():
            self.mirror.fetch()

    def begin(self, run: str = "run-1", attempt: int = 1) -> None:
        begin_run(self.directory, run, attempt)

    def save(self, step: int, content: bytes | None = None, run: str = "run-1", folder: str = "checkpoints") -> None:
        save(self.directory, step, content, run, folder)

    def steps(self, folder: str = "checkpoints") -> list[int]:
        return steps(self.directory / folder)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, str(self.disk))
            yield


def begin_run(directory: Path, run: str = "run-1", attempt: int = 1) -> None:
    """Writes what a run has before its first checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_json(directory / "run.json", {"id": run, "attempts": [{}] * attempt, "status": "running"})
    storage.write_text(directory / "config.yaml", "seed: 1\n")


def save(
    directory: Path, step: int, content: bytes | None = None, run: str = "run-1", folder: str = "checkpoints"
) -> None:
    """Writes a checkpoint atomically: files in folders, and their manifest."""
    (directory / folder).mkdir(parents=True, exist_ok=True)
    storage.write_text(directory / "history.csv", "step,loss\n" + "".join(f"{s},1.0\n" for s in range(step + 1)))
    with storage.atomic_path(directory / folder / str(step)) as temporary:
        (temporary / "state" / "d").mkdir(parents=True)
        (temporary / "state" / "d" / "array").write_bytes(content or os.urandom(5000) + bytes([step % 256]))
        (temporary / "meta").write_text(json.dumps({"step": step}))
        manifest.write(temporary, manifest.Manifest(step, run, time.time(), {}, {}, "0"))


def steps(directory: Path) -> list[int]:
    """Returns the steps of a directory after verifying every byte."""
    found = [path for path in directory.iterdir() if path.name.isdecimal()] if directory.is_dir() else []
    for path in found:
        manifest.verify(path)
    return sorted(int(path.name) for path in found)


def remote_steps(url: str, folder: str = "checkpoints") -> list[int]:
    """Returns the steps that are complete in a store."""
    names = Store(url).listing()
    ending = f"/{manifest.NAME}"
    found = [name.removesuffix(ending).rpartition("/") for name in names if name.endswith(ending)]
    return sorted(int(step) for parent, _, step in found if parent == folder and step.isdecimal())


@contextmanager
def failing_at(prefix: str) -> Iterator[None]:
    """Inside the block, uploads of objects whose names start with `prefix` fail."""
    put = Store.put

    def failing(store: Store, name: str, *args: Any) -> Any:
        if name.removeprefix(f"{INCOMING}/").startswith(prefix):
            raise StoreError("gone")
        return put(store, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "put", failing)
        yield


def fetched_machine(tmp_path, url, name="second"):
    """Returns a machine with a copy of its own of what the store has."""
    machine = Machine(tmp_path / name, url)
    machine.fetch()
    return machine
