"""The card's files: each whole or not at all, and none that somebody else wrote."""

import codecs
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.report.card.content import read_card
from everstep.report.card.drawings import Drawing, drawings
from everstep.report.card.page import html
from everstep.report.card.readme import MARKER, markdown

logger = logging.getLogger(__name__)

FOLDER, PAGE = "model-card", "model_card.html"
NAMES = ("README.md", "MODEL_CARD.md")


def write_card(run_dir: storage.PathLike, config: Mapping[str, Any]) -> list[Path]:
    """Writes the model card of a run: `README.md`, `model-card/model_card.html` and the pictures of the former.

    A `README.md` that somebody else wrote stays as it is; the card is `MODEL_CARD.md` then, and that is said.

    Args:
      run_dir: The run's folder, with `reports/` and `exported/` as far as they are there.
      config: The configuration with the sections `model_details`, `model_parameters` and `considerations`.

    Returns:
      The page and, if it could be named, the Markdown file.

    Raises:
      UsageError: A file of the run is damaged, or the folder cannot be written to.
      OSError: The disk does not take it.
    """
    folder = Path(run_dir)
    card = read_card(folder, redaction.tree(dict(config)))
    pictures = drawings(card)
    _write_pictures(folder / FOLDER, pictures)
    storage.write_bytes(folder / FOLDER / PAGE, _bytes(html(card, pictures)))
    name = _name(folder)
    if name is None:
        return [folder / FOLDER / PAGE]
    storage.write_bytes(folder / name, _bytes(markdown(card, pictures)))
    return [folder / FOLDER / PAGE, folder / name]


def _write_pictures(folder: Path, pictures: Sequence[Drawing]) -> None:
    """Replaces the pictures all at once; what a killed process left half written goes."""
    storage.prepare_directory(folder)
    for entry in folder.iterdir():
        if storage.is_temporary(entry):
            storage.remove_directory(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
    with storage.atomic_path(folder / "histograms") as temporary:
        temporary.mkdir()
        for picture in pictures:
            (temporary / picture.file).write_bytes(_bytes(picture.svg))


def _name(folder: Path) -> str | None:
    """Returns the name that the Markdown file may have; an older card of ours under the other one is removed."""
    name = next((name for name in NAMES if _is_ours(folder / name)), None)
    if name is None:
        logger.warning("%s and %s in %s are not everstep's: only the page is written", *NAMES, folder)
    elif name == NAMES[0]:
        if (folder / NAMES[1]).exists() and _is_ours(folder / NAMES[1]):
            (folder / NAMES[1]).unlink()
    else:
        logger.warning("%s is yours and stays: the model card is %s", folder / NAMES[0], name)
    return name


def _is_ours(path: Path) -> bool:
    """Tells whether a file may be written: it is not there, or begins as those that are written here do."""
    if not path.exists() and not path.is_symlink():
        return True
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        begin = file.read(1024)
    return begin.removeprefix(codecs.BOM_UTF8).lstrip().startswith(MARKER.encode("ascii"))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
