"""The card as one HTML file: no script at all, the report's look, and every text escaped."""

import html as markup
import string
from collections.abc import Iterator, Sequence

from everstep.report.card.content import Card
from everstep.report.card.described import Entry, Section
from everstep.report.card.drawings import Drawing
from everstep.report.card.links import is_link
from everstep.report.card.loading import Loading
from everstep.report.card.table import Row, rows
from everstep.report.facts import Fact
from everstep.report.shell import page_file, policy


def html(card: Card, drawings: Sequence[Drawing]) -> str:
    """Returns the page; links in it lead from `model-card/` into the run's folder."""
    style = page_file("page.css") + page_file("card.css")
    return string.Template(page_file("card.html")).substitute(
        title=_safe(card.title),
        subtitle=_safe(subtitle(card)),
        policy=policy(style),
        style=style,
        content="\n".join(_content(card, drawings)),
    )


def subtitle(card: Card) -> str:
    """Returns the line below the title: which run of which project it is."""
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


def _entry(entry: Entry) -> str:
    if entry.listed and len(entry.texts) > 1:
        return f"<ul>{''.join(f'<li>{_linked(text)}</li>' for text in entry.texts)}</ul>"
    return "".join(_paragraph(part) for text in entry.texts for part in text.split("\n\n"))


def _means(card: Card) -> str:
    splits = "".join(f'<th scope="col">{_safe(one.split)}</th>' for one in card.measured)
    body = "".join(_row(row, len(card.measured)) for row in rows(card))
    caption = '<caption class="hidden">Means of the metrics, with how many samples have one</caption>'
    head = f'<thead><tr><th scope="col">mean (samples)</th>{splits}</tr></thead>'
    table = f'<table class="plain-table means">{caption}{head}<tbody>{body}</tbody></table>'
    return f'<div class="scroller">{table}</div>'


def _row(row: Row, columns: int) -> str:
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
    """Returns a text; one that is nothing but an address is a link to it."""
    if not is_link(text):
        return _safe(text)
    return f'<a href="{_safe(text)}" rel="noopener noreferrer">{_safe(text)}</a>'


def _spaced(name: str) -> str:
    """Returns a name as the report shows it; it can be broken where a line ends."""
    return name.replace("_", " ")


def _safe(text: str) -> str:
    return markup.escape(text, quote=True)
