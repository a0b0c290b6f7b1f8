"""The model card as Markdown and as one HTML page, with a histogram of each metric as SVG.

Descriptions are escaped in both, and the page has no script. Each file is written completely or not at all, and a
README of the user's is never overwritten.
"""

import codecs
import dataclasses
import html
import logging
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.report.card.content import Card, CardEntry, CardMetric, Loading, Measured, Section, read_card
from everstep.report.html_page import page_file, policy
from everstep.report.numbers import shown
from everstep.report.run_data import Fact

logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"https?://[A-Za-z0-9][\w.:-]*(/[\w./~%?&=+,;:@!$*#-]*)?", re.ASCII)


def is_link(text: str) -> bool:
    """Returns whether a text consists of one http(s) address; other schemes are not links."""
    return _ADDRESS.fullmatch(text) is not None


WIDTH, HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, WIDTH - 10, 10, HEIGHT - 26
_FONT = 'font-family="system-ui, sans-serif" font-size="11"'


def histogram(edges: Sequence[float], counts: Sequence[int], mean: float | None, label: str) -> str:
    """Returns a histogram as SVG, with attributes for the style where there is no style sheet.

    Args:
      edges: The edges of the bins, one more than `counts`.
      counts: The number of samples in each bin.
      mean: Where to draw a line; None for no line.
      label: A description for screen readers.
    """
    low, high, most = edges[0], edges[-1], max(1, *counts)
    parts = [*_grid(most), *_names(low, high), *_bars(counts, most)]
    if mean is not None and low < high:
        x = _spell(_LEFT + _share(mean, low, high) * (_RIGHT - _LEFT))
        parts.append(
            f'<line class="mean" stroke="#d2600f" stroke-width="1.6" stroke-dasharray="4 3" x1="{x}" x2="{x}" '
            f'y1="{_TOP}" y2="{_BOTTOM}"/>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'{head} role="img" aria-label="{html.escape(label)}">\n' + "\n".join(parts) + "\n</svg>\n"


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Returns round numbers from low to high, about as many as wanted."""
    rough = high / wanted - low / wanted
    if not (0 < rough < math.inf):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)), 0.0)
    if not 0 < step < math.inf or low + step == low:
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [float(f"{(first + i) * step:.12g}") for i in range(wanted + 2) if (first + i) * step <= high + step * 1e-9]


def _bars(counts: Sequence[int], most: int) -> list[str]:
    wide = (_RIGHT - _LEFT) / len(counts)
    return [
        f'<rect class="bar" fill="#2458d3" fill-opacity="0.75" x="{_spell(_LEFT + i * wide + 0.4)}" '
        f'width="{_spell(wide - 0.8)}" y="{_spell(_BOTTOM - _height(count, most))}" '
        f'height="{_spell(_height(count, most))}"/>'
        for i, count in enumerate(counts)
        if count
    ]


def _height(count: int, most: int) -> float:
    return max(1.5, count / most * (_BOTTOM - _TOP))


def _grid(most: int) -> list[str]:
    whole = [round(value) for value in ticks(0, most, 3) if value == round(value)]
    rows = [(value, _spell(_BOTTOM - value / most * (_BOTTOM - _TOP))) for value in whole]
    lines = [
        f'<line class="grid" stroke="#8894a5" stroke-opacity="0.3" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        for _, y in rows
    ]
    names = [_text(_LEFT - 6, float(y) + 4, "end", shown(value)) for value, y in rows]
    return [*lines, *names]


def _names(low: float, high: float) -> list[str]:
    places = [(value, _share(value, low, high)) for value in ticks(low, high, 4)]
    return [
        _text(_LEFT + share * (_RIGHT - _LEFT), _BOTTOM + 17, _anchor(share), shown(value, 3))
        for value, share in places
    ]


def _anchor(share: float) -> str:
    return "end" if share > 0.94 else "start" if share < 0.03 else "middle"


def _text(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{_spell(x)}" y="{_spell(y)}" text-anchor="{anchor}"'
    return f'<text class="axis" fill="#6b7687" {_FONT} {place}>{text}</text>'


def _share(value: float, low: float, high: float) -> float:
    span = high / 2 - low / 2  # halved: the difference of two floats may overflow
    return (value / 2 - low / 2) / span if span else 0.5


def _spell(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@dataclasses.dataclass(frozen=True)
class Drawing:
    """One histogram.

    Attributes:
      name: The name of the metric.
      split: The name of the split.
      file: The name of its file.
      svg: The drawing.
      reading: A description in words.
    """

    name: str
    split: str
    file: str
    svg: str
    reading: str


def drawings(card: Card) -> list[Drawing]:
    """Returns the histograms, metric by metric, with those of one metric side by side."""
    longest = max((len(one.metrics) for one in card.measured), default=0)
    places = [(place, one) for place in range(longest) for one in card.measured if place < len(one.metrics)]
    return [_drawing(one.metrics[place], one.split, place + 1) for place, one in places]


def _drawing(metric: CardMetric, split: str, number: int) -> Drawing:
    low, high = shown(metric.edges[0], 3), shown(metric.edges[-1], 3)
    reading = f"{low} to {high}, mean {shown(metric.mean)}" if metric.count else "no sample has a number"
    if metric.count and max(metric.counts) == metric.count and metric.mean == (metric.edges[0] + metric.edges[-1]) / 2:
        reading = f"always {shown(metric.mean)}"  # the edges are a margin around the one value
    svg = histogram(metric.edges, metric.counts, metric.mean, f"Distribution of {metric.name}, {split}: {reading}")
    name = re.sub(r"[^a-z0-9]+", "-", metric.name.lower()).strip("-")[:40]
    return Drawing(metric.name, split, f"{split}-{number}{f'-{name}' if name else ''}.svg", svg, reading)


@dataclasses.dataclass(frozen=True)
class CardRow:
    """One row of the table of metrics.

    Attributes:
      name: The metric, or the heading of the following rows.
      note: A remark on the metric.
      cells: For each split the value, and the number of samples it is the mean of ("" for the model's own metrics).
      is_group: Whether it is a heading.
    """

    name: str
    note: str = ""
    cells: tuple[tuple[str, str], ...] = ()
    is_group: bool = False


def table_rows(card: Card) -> list[CardRow]:
    """Returns the rows of the table of metrics: the evaluator's functions first, then the model's own metrics."""
    names = dict.fromkeys(metric.name for one in card.measured for metric in one.metrics)
    functions = [_of_functions(name, card.measured) for name in names]
    own = list(_own(card.measured))
    return functions + ([CardRow("by model.evaluate", is_group=True)] if functions and own else []) + own


def _of_functions(name: str, found: list[Measured]) -> CardRow:
    known = [next((metric for metric in one.metrics if metric.name == name), None) for one in found]
    first = next(metric for metric in known if metric)
    better = f"{first.better} is better" if first.better else ""
    note = "; ".join(filter(None, (" ".join(first.description.split()).rstrip("."), better)))
    return CardRow(name, note, tuple(_cell(metric) for metric in known))


def _cell(metric: CardMetric | None) -> tuple[str, str]:
    return (shown(metric.mean), f"{metric.count:,}") if metric else (shown(None), "")


def _own(found: list[Measured]) -> Iterator[CardRow]:
    for name in dict.fromkeys(name for one in found for name in one.overall):
        yield CardRow(name, cells=tuple((shown(one.overall.get(name)), "") for one in found))


def page_html(card: Card, drawings: Sequence[Drawing]) -> str:
    """Returns the page; its links are relative to `model-card/`."""
    style = page_file("page.css") + page_file("card.css")
    return string.Template(page_file("card.html")).substitute(
        title=_safe(card.title),
        subtitle=_safe(subtitle(card)),
        policy=policy(style),
        style=style,
        content="\n".join(_content(card, drawings)),
    )


def subtitle(card: Card) -> str:
    """Returns the line below the title: the run and its project."""
    return f"Run {card.run}{f' of {card.project}' if card.project else ''}"


def _content(card: Card, drawings: Sequence[Drawing]) -> Iterator[str]:
    if card.overview:
        yield f'<section class="overview">{"".join(map(_paragraph, card.overview))}</section>'
    yield from map(_written, card.details)
    if card.measured:
        notes = "".join(f'<p class="note warn">{_safe(note)}</p>' for note in card.notes)
        yield _section("Metrics", notes + _means(card) + _histograms(drawings))
    yield from map(_written, card.sections)
    if card.training:
        yield _section("Training", _facts(card.training))
    if card.loading:
        yield _section("How to load it", _loading(card.loading))
    if card.links:
        yield _section("Files", _files(card.links))


def _written(section: Section) -> str:
    entries = "".join(f"<div><dt>{_safe(one.label)}</dt><dd>{_entry(one)}</dd></div>" for one in section.entries)
    return _section(section.title, f'<dl class="card entries">{entries}</dl>')


def _entry(entry: CardEntry) -> str:
    if entry.listed and len(entry.texts) > 1:
        return f"<ul>{''.join(f'<li>{_linked(text)}</li>' for text in entry.texts)}</ul>"
    return "".join(_paragraph(part) for text in entry.texts for part in text.split("\n\n"))


def _means(card: Card) -> str:
    splits = "".join(f'<th scope="col">{_safe(one.split)}</th>' for one in card.measured)
    body = "".join(_row(row, len(card.measured)) for row in table_rows(card))
    caption = '<caption class="hidden">Means of the metrics, with how many samples have one</caption>'
    head = f'<thead><tr><th scope="col">mean (samples)</th>{splits}</tr></thead>'
    table = f'<table class="plain-table means">{caption}{head}<tbody>{body}</tbody></table>'
    return f'<div class="scroller">{table}</div>'


def _row(row: CardRow, columns: int) -> str:
    if row.is_group:
        return f'<tr class="group"><th scope="rowgroup" colspan="{columns + 1}">{_safe(row.name)}</th></tr>'
    note = f'<span class="muted">{_safe(row.note)}</span>' if row.note else ""
    cells = "".join(
        f"<td>{value}{f' <span class=muted>({count})</span>' if count else ''}</td>" for value, count in row.cells
    )
    return f'<tr><th scope="row">{_safe(_spaced(row.name))}{note}</th>{cells}</tr>'


def _histograms(drawings: Sequence[Drawing]) -> str:
    if not drawings:
        return ""
    figures = "".join(map(_figure, drawings))
    return f'<h3>How they are distributed</h3><div class="charts histograms">{figures}</div>'


def _figure(drawing: Drawing) -> str:
    split = f'<span class="muted">{_safe(drawing.split)}</span>'
    caption = f"<figcaption>{_safe(_spaced(drawing.name))} {split}</figcaption>"
    return f'<figure class="card">{caption}{drawing.svg}<div class="legend">{_safe(drawing.reading)}</div></figure>'


def _facts(facts: Sequence[Fact]) -> str:
    entries = "".join(f"<div><dt>{_safe(one['name'])}</dt><dd>{_safe(one['value'])}</dd></div>" for one in facts)
    return f'<dl class="card entries brief">{entries}</dl>'


def _loading(loading: Loading) -> str:
    path = f"<p>It is in <code>{_safe(loading.path)}</code> of the project.</p>"
    return f'{path}<pre class="card code">{_safe(loading.code)}</pre><p class="muted">{_safe(loading.note)}</p>'


def _files(links: dict[str, str]) -> str:
    items = "".join(f'<li><a href="../{_safe(path)}">{_safe(text)}</a></li>' for path, text in links.items())
    return f'<ul class="files">{items}</ul>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_safe(title)}</h2>{content}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{_linked(text)}</p>"


def _linked(text: str) -> str:
    """Returns a text as HTML; one that consists of an address becomes a link."""
    if not is_link(text):
        return _safe(text)
    return f'<a href="{_safe(text)}" rel="noopener noreferrer">{_safe(text)}</a>'


def _spaced(name: str) -> str:
    """Returns a name as the report shows it, with spaces at which lines can break."""
    return name.replace("_", " ")


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


MARKER = "<!-- everstep: model card"
"""The beginning of a file that may be overwritten."""

_HEAD = f"{MARKER}, written again by every evaluation. To keep changes of yours, remove this line. -->"
_MARKUP = re.compile(r"([\\`*_\[\]|~$#])")
_BEGINNING = re.compile(r"([+-]|\d{1,9}(?=[.)](\s|$)))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(card: Card, drawings: Sequence[Drawing]) -> str:
    """Returns the Markdown file; its links are relative to the run's folder."""
    return "\n\n".join([_HEAD, *_blocks(card, drawings)]) + "\n"


def escaped(text: str) -> str:
    """Returns a text escaped for Markdown, in one line."""
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
    yield from map(_linked_markdown, card.overview)
    for section in card.details:
        yield from [f"## {section.title}", *map(_entry_markdown, section.entries)]
    if card.measured:
        notes = [f"> **Note:** {escaped(note)}" for note in card.notes]
        yield from ["## Metrics", *notes, _means_markdown(card), *_histograms_markdown(card, drawings)]
    for section in card.sections:
        yield from [f"## {section.title}", *map(_entry_markdown, section.entries)]
    yield from _rest(card)


def _rest(card: Card) -> Iterator[str]:
    if card.training:
        facts = [[escaped(one["name"]), escaped(one["value"])] for one in card.training]
        yield from ["## Training", _table_markdown([["", ""], *facts], "ll")]
    if card.loading:
        code = f"```python\n{card.loading.code}```"
        yield from ["## How to load it", f"It is in {escaped(card.loading.path)} of the project.", code]
        yield escaped(card.loading.note)
    links = {"model-card/model_card.html": "This card as a page", **card.links}
    yield from ["## Files", "\n".join(f"- [{escaped(text)}]({path})" for path, text in links.items())]


def _entry_markdown(entry: CardEntry) -> str:
    label = f"**{escaped(entry.label[:1].upper() + entry.label[1:])}**"
    if entry.listed and len(entry.texts) > 1:
        return "\n".join([f"{label}\n", *(f"- {_linked_markdown(text)}" for text in entry.texts)])
    paragraphs = [_linked_markdown(part) for text in entry.texts for part in text.split("\n\n")]
    return "\n\n".join([f"{label}: {paragraphs[0]}", *paragraphs[1:]])


def _means_markdown(card: Card) -> str:
    head = ["mean (samples)", *(escaped(one.split) for one in card.measured)]
    return _table_markdown(
        [head, *(_row_markdown(row, len(card.measured)) for row in table_rows(card))], "l" + "r" * len(card.measured)
    )


def _row_markdown(row: CardRow, columns: int) -> list[str]:
    if row.is_group:
        return [f"*{escaped(row.name)}*", *[""] * columns]
    note = f"<br>{escaped(row.note)}" if row.note else ""
    return [f"{escaped(row.name)}{note}", *(f"{value}{f' ({count})' if count else ''}" for value, count in row.cells)]


def _histograms_markdown(card: Card, drawings: Sequence[Drawing]) -> Iterator[str]:
    splits = [one.split for one in card.measured if one.metrics]
    if splits:
        names = dict.fromkeys(one.name for one in drawings)
        yield _table_markdown(
            [
                ["", *map(escaped, splits)],
                *([escaped(name), *_pictures_markdown(name, splits, drawings)] for name in names),
            ],
            "l" + "c" * len(splits),
        )


def _pictures_markdown(name: str, splits: list[str], drawings: Sequence[Drawing]) -> Iterator[str]:
    for split in splits:
        found = next((one for one in drawings if (one.name, one.split) == (name, split)), None)
        yield f"![{escaped(found.reading)}](model-card/histograms/{found.file})" if found else ""


def _table_markdown(cells: Sequence[Sequence[str]], align: str) -> str:
    rule = [{"l": "---", "r": "---:", "c": ":---:"}[side] for side in align]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


def _linked_markdown(text: str) -> str:
    return f"<{text}>" if is_link(text) else escaped(text)


FOLDER, PAGE = "model-card", "model_card.html"
NAMES = ("README.md", "MODEL_CARD.md")


def write_card(run_dir: storage.PathLike, config: Mapping[str, Any]) -> list[Path]:
    """Writes the model card of a run: `README.md` with its pictures, and `model-card/model_card.html`.

    A `README.md` of the user's is kept; the card is then written to `MODEL_CARD.md`, with a warning.

    Args:
      run_dir: The run's folder; its evaluation and its export are used if they exist.
      config: The configuration with the sections `model_details`, `model_parameters` and `considerations`.

    Returns:
      The paths of the page and, unless both names are taken, of the Markdown file.

    Raises:
      UsageError: A file of the run is damaged, or the folder cannot be written to.
      OSError: Writing to disk fails.
    """
    folder = Path(run_dir)
    card = read_card(folder, redaction.tree(dict(config)))
    pictures = drawings(card)
    _write_pictures(folder / FOLDER, pictures)
    storage.write_bytes(folder / FOLDER / PAGE, _bytes(page_html(card, pictures)))
    name = _markdown_name(folder)
    if name is None:
        return [folder / FOLDER / PAGE]
    storage.write_bytes(folder / name, _bytes(markdown(card, pictures)))
    return [folder / FOLDER / PAGE, folder / name]


def _write_pictures(folder: Path, pictures: Sequence[Drawing]) -> None:
    """Replaces all pictures at once, and removes temporary files of a killed process."""
    storage.prepare_directory(folder)
    for entry in folder.iterdir():
        if storage.is_temporary(entry):
            storage.remove_directory(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
    with storage.atomic_path(folder / "histograms") as temporary:
        temporary.mkdir()
        for picture in pictures:
            (temporary / picture.file).write_bytes(_bytes(picture.svg))


def _markdown_name(folder: Path) -> str | None:
    """Returns the name for the Markdown file; an older card under the other name is removed."""
    name = next((name for name in NAMES if _is_ours(folder / name)), None)
    if name is None:
        logger.warning("%s and %s in %s were not written by everstep: only the page is written", *NAMES, folder)
    elif name == NAMES[0]:
        if (folder / NAMES[1]).exists() and _is_ours(folder / NAMES[1]):
            (folder / NAMES[1]).unlink()
    else:
        logger.warning("%s was not written by everstep and is kept: the model card is %s", folder / NAMES[0], name)
    return name


def _is_ours(path: Path) -> bool:
    """Returns whether a file may be written: it does not exist, or begins with the marker of a model card."""
    if not path.exists() and not path.is_symlink():
        return True
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        begin = file.read(1024)
    return begin.removeprefix(codecs.BOM_UTF8).lstrip().startswith(MARKER.encode("ascii"))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
