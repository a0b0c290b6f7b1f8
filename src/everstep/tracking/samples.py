"""What a run shows of its evaluations, as files: `samples/<step>/`.

    samples/200/predictions-0.png        a picture
    samples/200/predictions.captions.txt a line for each of them
    samples/200/answers.txt              texts

The files come first: trackers that upload them note their names (`image_files`, `text_file`) and read them later.
"""

import dataclasses
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from everstep import redaction, storage
from everstep.tracking.tracker import LogKind, Tracker

BINS = 32
"""The number of bins of a histogram."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of the finite numbers of an array.

    Attributes:
      counts: How many there are between two edges.
      edges: One more than there are counts.
      total: The sum of the numbers.
      squares: The sum of their squares.
    """

    counts: list[int]
    edges: list[float]
    total: float
    squares: float


def histogram(values: np.ndarray) -> Histogram | None:
    """Returns the histogram of an array; None where it has no finite number."""
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return None
    with np.errstate(all="ignore"):
        counts, edges = _counted(numbers)
        return Histogram(counts.tolist(), edges.tolist(), float(numbers.sum()), float(np.square(numbers).sum()))


def _counted(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        return np.histogram(numbers, bins=BINS)
    except ValueError:  # the numbers are too close, or too far apart, for so many bins
        return np.array([numbers.size]), np.array([numbers.min(), numbers.max()])


FOLDER = "samples"
"""The folder of a run directory that holds them."""

_ODD = re.compile(r"[^\w.-]+")


def png(image: np.ndarray) -> bytes:
    """Returns an image in bytes, (h, w) or (h, w, 3 or 4), as the content of a PNG file."""
    data = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(data, format="PNG")
    return data.getvalue()


def image_files(step: int, name: str, count: int) -> list[str]:
    """Returns the paths of the images in the run directory."""
    return [f"{FOLDER}/{step}/{_file(name)}-{number}.png" for number in range(count)]


def text_file(step: int, name: str) -> str:
    """Returns the path of the texts in the run directory."""
    return f"{FOLDER}/{step}/{_file(name)}.txt"


class SampleFiles(Tracker):
    """Writes images and texts to `samples/`.

    A call that fails to write raises OSError, and its samples are lost: the next evaluation has others.

    Args:
      directory: The run directory.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self._directory = Path(directory)
        self._old: set[int] = set()  # steps beyond the restored one with samples of an earlier attempt

    def start(self, step: int) -> None:
        """Lists what is beyond `step`: it is removed when the run has passed it, since it may not be uploaded yet."""
        folder = self._directory / FOLDER
        found = folder.iterdir() if folder.is_dir() else ()
        self._old = {int(one.name) for one in found if one.name.isdecimal() and int(one.name) > step}

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Ignores numbers."""

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Writes a file for each image, and one for the captions."""
        self._pass(step)
        for path, image in zip(image_files(step, name, len(images)), images, strict=True):
            storage.write_bytes(self._at(path), png(image))
        lines = "".join(f"{caption}\n" for caption in captions)
        storage.write_text(self._at(text_file(step, f"{name}.captions")), redaction.text(lines))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Writes one file, with an empty line between two texts."""
        self._pass(step)
        storage.write_text(self._at(text_file(step, name)), redaction.text("\n\n".join(texts) + "\n"))

    def flush(self) -> None:
        """Is not needed: every call has written its files."""

    def close(self) -> None:
        """Is not needed: every call has written its files."""

    def _pass(self, step: int) -> None:
        for old in [old for old in self._old if old < step]:
            shutil.rmtree(self._directory / FOLDER / str(old), ignore_errors=True)
        self._old = {old for old in self._old if old > step}

    def _at(self, path: str) -> Path:
        full = self._directory / path
        full.parent.mkdir(parents=True, exist_ok=True)
        return full


def _file(name: str) -> str:
    return _ODD.sub("_", name).strip(".") or "_"
