"""The card as Markdown, as code hosts show it. Texts of people are text in it: nothing they write is markup."""

import re
from collections.abc import Iterator, Sequence

from everstep.report.card.content import Card
from everstep.report.card.described import Entry
from everstep.report.card.drawings import Drawing
from everstep.report.card.links import is_link
from everstep.report.card.page import subtitle
from everstep.report.card.table import Row, rows

MARKER = "<!-- everstep: model card"
"""How a file begins that may be written again."""

_HEAD = f"{MARKER}, written again by every evaluation. To keep changes of yours, remove this line. -->"
_MARKUP = re.compile(r"([\\`*_\[\]|~$#])")
_BEGINNING = re.compile(r"([+-]|\d{1,9}(?=[.)](\s|$)))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(card: Card, drawings: Sequence[Drawing]) -> str:
    """Returns the file; links in it lead from the run's folder."""
    return "\n\n".join([_HEAD, *_blocks(card, drawings)]) + "\n"


def escaped(text: str) -> str:
    """Returns a text that Markdown shows as it is, in one line."""
    line = " ".join(text.split())
    line = "".join(_ENTITIES.get(letter, letter) for letter in _MARKUP.sub(r"\\\1", line))
    found = _BEGINNING.match(line)
    if not found:
        return line
    begin = found[1]
    return f"{begin}\\{line[len(begin) :]}" if begin[0].isdigit() else f"\\{line}"


def _blocks(card: Card, drawings: Sequence[Drawing]) -> Iterator[str]:
    yield f"# {escaped(card.title)}"
    yield escaped(subtitle(card))
    yield from map(_linked, card.overview)
    for section in card.details:
        yield from [f"## {section.title}", *map(_entry, section.entries)]
    if card.measured:
        notes = [f"> **Note:** {escaped(note)}" for note in card.notes]
        yield from ["## Metrics", *notes, _means(card), *_histograms(card, drawings)]
    for section in card.sections:
        yield from [f"## {section.title}", *map(_entry, section.entries)]
    yield from _rest(card)


def _rest(card: Card) -> Iterator[str]:
    if card.training:
        facts = [[escaped(one["name"]), escaped(one["value"])] for one in card.training]
        yield from ["## Training", _table([["", ""], *facts], "ll")]
    if card.loading:
        code = f"```python\n{card.loading.code}```"
        yield from ["## How to load it", f"It is in {escaped(card.loading.path)} of the project.", code]
        yield escaped(card.loading.note)
    links = {"model-card/model_card.html": "This card as a page", **card.links}
    yield from ["## Files", "\n".join(f"- [{escaped(text)}]({path})" for path, text in links.items())]


def _entry(entry: Entry) -> str:
    label = f"**{escaped(entry.label[:1].upper() + entry.label[1:])}**"
    if entry.listed and len(entry.texts) > 1:
        return "\n".join([f"{label}\n", *(f"- {_linked(text)}" for text in entry.texts)])
    paragraphs = [_linked(part) for text in entry.texts for part in text.split("\n\n")]
    return "\n\n".join([f"{label}: {paragraphs[0]}", *paragraphs[1:]])


def _means(card: Card) -> str:
    head = ["mean (samples)", *(escaped(one.split) for one in card.measured)]
    return _table([head, *(_row(row, len(card.measured)) for row in rows(card))], "l" + "r" * len(card.measured))


def _row(row: Row, columns: int) -> list[str]:
    if row.is_group:
        return [f"*{escaped(row.name)}*", *[""] * columns]
    note = f"<br>{escaped(row.note)}" if row.note else ""
    return [f"{escaped(row.name)}{note}", *(f"{value}{f' ({count})' if count else ''}" for value, count in row.cells)]


def _histograms(card: Card, drawings: Sequence[Drawing]) -> Iterator[str]:
    splits = [one.split for one in card.measured if one.metrics]
    if splits:
        names = dict.fromkeys(one.name for one in drawings)
        yield _table(
            [["", *map(escaped, splits)], *([escaped(name), *_pictures(name, splits, drawings)] for name in names)],
            "l" + "c" * len(splits),
        )


def _pictures(name: str, splits: list[str], drawings: Sequence[Drawing]) -> Iterator[str]:
    for split in splits:
        found = next((one for one in drawings if (one.name, one.split) == (name, split)), None)
        yield f"![{escaped(found.reading)}](model-card/histograms/{found.file})" if found else ""


def _table(cells: Sequence[Sequence[str]], align: str) -> str:
    rule = [{"l": "---", "r": "---:", "c": ":---:"}[side] for side in align]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


def _linked(text: str) -> str:
    return f"<{text}>" if is_link(text) else escaped(text)
