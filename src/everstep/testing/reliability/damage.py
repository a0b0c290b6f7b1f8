"""Checkpoints with a flipped bit, a short, an empty or a missing file: found, kept aside, and the one before used.

100 random bits are flipped, one at a time, anywhere in a checkpoint, and each of its files is truncated, emptied and
removed; after each the newest checkpoint is restored. Then every single bit of the manifest, which guards the others,
is flipped. The bars: all of it is noticed, the checkpoint before it is what comes back, and the damaged one is kept as
it was, byte for byte.
"""

import dataclasses
import random
import shutil
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep.checkpoint import manifest, parts
from everstep.errors import TrainingError, UsageError
from everstep.testing.reliability.saver import ARRAYS, Plan, is_whole, metrics_of, state_of

SIZE = 200_000
OLDER, NEWEST = 20, 30

Damage = Callable[[Path, random.Random], str]
"""Damages a file; returns in words where."""


def flip(path: Path, choice: random.Random) -> str:
    """Flips one random bit."""
    bit = choice.randrange(8 * path.stat().st_size)
    flip_bit(path, bit)
    return f"bit {bit} flipped"


def flip_bit(path: Path, bit: int) -> None:
    """Flips this bit."""
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0] ^ (1 << bit % 8)
        file.seek(bit // 8)
        file.write(bytes([byte]))


def truncate(path: Path, choice: random.Random) -> str:
    """Cuts a random part off the end."""
    length = choice.randrange(path.stat().st_size)
    with open(path, "r+b") as file:
        file.truncate(length)
    return f"cut to {length} bytes"


def empty(path: Path, choice: random.Random) -> str:
    """Leaves nothing in it."""
    path.write_bytes(b"")
    return "emptied"


def remove(path: Path, choice: random.Random) -> str:
    """Removes it."""
    path.unlink()
    return "removed"


@dataclasses.dataclass
class Figures:
    """The figures of all damages.

    Attributes:
      tried: How many of each kind.
      undetected: Those that were not noticed, in words.
      not_recovered: Those after which another state than the one before came back, or none.
      not_kept: Those after which the damaged checkpoint was not kept as it was.
      manifest_bits: How many bits of the manifest were flipped.
      manifest_missed: Those after which it was not called damaged.
    """

    tried: dict[str, int] = dataclasses.field(default_factory=dict)
    undetected: list[str] = dataclasses.field(default_factory=list)
    not_recovered: list[str] = dataclasses.field(default_factory=list)
    not_kept: list[str] = dataclasses.field(default_factory=list)
    manifest_bits: int = 0
    manifest_missed: list[str] = dataclasses.field(default_factory=list)

    def passed(self) -> bool:
        """Returns whether all bars were met."""
        return not self.wrong()

    def wrong(self) -> list[str]:
        """Returns what missed a bar."""
        return [*self.undetected, *self.not_recovered, *self.not_kept, *self.manifest_missed]

    def line(self) -> str:
        """Returns the figures on one line."""
        total = sum(self.tried.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.tried.items())
        return (
            f"damages {total} ({kinds}) | detected {total - len(self.undetected)}, fell back "
            f"{total - len(self.undetected) - len(self.not_recovered)}, kept aside byte for byte "
            f"{total - len(self.undetected) - len(self.not_kept)} | bits of the manifest {self.manifest_bits}, "
            f"detected {self.manifest_bits - len(self.manifest_missed)} | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, flips: int, manifest_step: int = 1, seed: int = 0) -> Figures:
    """Damages a checkpoint in every way, each time a fresh copy.

    Args:
      folder: Where to work.
      flips: How many bits to flip, anywhere.
      manifest_step: Flip each so many-th bit of the manifest.
      seed: Of what is random.
    """
    original = folder / "original"
    save_two(original)
    figures, choice = Figures(), random.Random(seed)
    names = files(original / str(NEWEST))
    for name in _by_size(original, names, flips, choice):
        _try(figures, folder, "bits", flip, name, choice)
    for kind, damage in (("truncated", truncate), ("emptied", empty), ("removed", remove)):
        for name in names:
            _try(figures, folder, kind, damage, name, choice)
    _flip_manifest(figures, original / str(NEWEST), manifest_step)
    return figures


def save_two(directory: Path) -> None:
    """Saves the checkpoint that will be damaged, and one before it; half of their arrays count as small."""
    checkpointer = Plan(str(directory), SIZE, 0).open()
    with unittest.mock.patch.object(parts, "SMALL", SIZE // ARRAYS):
        for step in (OLDER, NEWEST):
            checkpointer.save(step, state_of(step, SIZE), {"step": step}, metrics_of(step) | {"loss": 0.1 + 0.2})
        checkpointer.close()


def files(checkpoint: Path) -> list[str]:
    """Returns the files of a checkpoint that are not empty."""
    paths = (path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(str(path.relative_to(checkpoint)) for path in paths)


def _by_size(original: Path, names: list[str], count: int, choice: random.Random) -> Iterator[str]:
    """Yields files: half of them by chance, as often as they are large, half of them in turn."""
    sizes = [(original / str(NEWEST) / name).stat().st_size for name in names]
    for number in range(count):
        yield choice.choices(names, sizes)[0] if number % 2 else names[number // 2 % len(names)]


def _try(figures: Figures, folder: Path, kind: str, damage: Damage, name: str, choice: random.Random) -> None:
    """Damages a file of a fresh copy and restores."""
    directory = folder / "copy"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(folder / "original", directory)
    what = f"{name} {damage(directory / str(NEWEST) / name, choice)}"
    before = contents(directory / str(NEWEST))
    figures.tried[kind] = figures.tried.get(kind, 0) + 1
    came_back = restored(directory)
    if came_back == NEWEST:
        figures.undetected.append(what)
        return
    if came_back != OLDER:
        figures.not_recovered.append(f"{what}: {came_back}")
    if contents(directory / f"{NEWEST}.damaged") != before:
        figures.not_kept.append(what)


def restored(directory: Path) -> int | str:
    """Restores the newest checkpoint; returns its step, or what was wrong."""
    checkpointer = Plan(str(directory), SIZE, 0).open()
    try:
        state, meta = checkpointer.restore()
        step = int(meta["step"])
        return step if is_whole(step, SIZE, state, meta) else f"step {step} came back with other bits"
    except (TrainingError, UsageError) as error:
        return str(error)
    finally:
        checkpointer.close()


def contents(checkpoint: Path) -> dict[str, bytes]:
    """Returns every file of a checkpoint, whole."""
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


def _flip_manifest(figures: Figures, checkpoint: Path, every: int) -> None:
    """Flips the bits of the manifest one after another; a checkpoint that calls itself damaged is set aside."""
    path = checkpoint / manifest.NAME
    for bit in range(0, 8 * path.stat().st_size, every):
        figures.manifest_bits += 1
        flip_bit(path, bit)
        try:
            manifest.read(checkpoint)
            figures.manifest_missed.append(f"bit {bit} of the manifest")
        except manifest.Damaged:
            pass
        except Exception as error:
            figures.manifest_missed.append(f"bit {bit} of the manifest: {type(error).__name__}: {error}")
        flip_bit(path, bit)
