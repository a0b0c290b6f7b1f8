"""What people wrote about a model in their config file: any of it may be missing, a text, a list, or nested."""

import dataclasses
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

_TITLES = {"model_details": "Details", "model_parameters": "Model", "considerations": "Considerations"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One key.

    Attributes:
      label: What it is called: `use cases`.
      texts: What it says: paragraphs are separated by an empty line, everything else is in one line.
      listed: Whether they are items of a list.
    """

    label: str
    texts: list[str]
    listed: bool


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the card.

    Attributes:
      title: Its heading.
      entries: What is in it.
    """

    title: str
    entries: list[Entry]


def sections(config: Mapping[str, Any]) -> list[Section]:
    """Returns details, parameters and considerations; a section that is not there has no entries."""
    return [Section(title, list(_entries(config.get(key), ""))) for key, title in _TITLES.items()]


def _entries(value: Any, label: str) -> Iterator[Entry]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _entries(inside, f"{label} {_words(key)}".strip())
    elif texts := _texts(value):
        yield Entry(label.removesuffix(" name"), texts, isinstance(value, list | tuple))


def _texts(value: Any) -> list[str]:
    """Returns what is said as texts; nothing for what is empty."""
    items = value if isinstance(value, list | tuple) else [value]
    return [text for item in items if (text := _text(item))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        said = {_words(key): text for key, inside in value.items() if (text := _text(inside))}
        if list(said) == ["description"]:  # which is what an item without a key is
            return said["description"]
        return "; ".join(f"{key}: {text}" for key, text in said.items())
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_text, value)))
    return "\n\n".join(filter(None, map(_line, plain(str(value)).split("\n\n"))))


def plain(text: str) -> str:
    """Returns a text without control characters; line ends are the same everywhere."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return "".join(letter for letter in lines if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cs"))


def _line(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _words(key: Any) -> str:
    return _line(plain(str(key)).replace("_", " "))
