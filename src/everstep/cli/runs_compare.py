"""`everstep runs compare`."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep import storage
from everstep.cli import options
from everstep.cli.local_runs import local_run
from everstep.cli.output import aligned, json_text, number
from everstep.errors import UsageError

_WIDEST = 44
_TITLES = {
    "configuration": "CONFIGURATION",
    "surroundings": "CODE, MACHINE AND DATA",
    "metrics": "METRICS",
    "evaluations": "EVALUATIONS",
    "course": "TIME AND SPEED",
}
_NOTHING = {"configuration": "no value differs", "surroundings": "nothing differs"}

Runs = Annotated[list[str], typer.Argument(metavar="DIR", help="Run directories, or URLs.")]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE", help="The picture of the curves, .png, .svg or .pdf; reports/compare.png in the first."
    ),
]
Html = Annotated[bool, typer.Option("--html", help="Write the page of everstep report as well: sample by sample.")]


def compare(runs: Runs, out: Out = None, html: Html = False, json: options.Json = False) -> None:
    """Compare runs: values that differ, code, machine and data, metrics, speed, and curves as a picture.

    A star marks the better value, where it is known which values are good. With --json a picture is drawn only where
    --out names it.
    """
    picture = importlib.import_module("everstep.report.picture")
    place = _checked(out, picture.FORMATS)
    if out is not None and not picture.can_draw():
        picture.draw(())
    directories = [Path(local_run(run, checkpoints=False)) for run in runs]
    found = importlib.import_module("everstep.report.side_by_side").side_by_side(directories)
    written = {} if json and out is None else _drawn(picture, found, place)
    written |= {"page": str(importlib.import_module("everstep.report").write(directories))} if html else {}
    print(json_text(found.as_dict() | written) if json else _text(found, written))


def _checked(out: str | None, formats: Sequence[str]) -> Path | None:
    if out is None:
        return None
    path = Path(out)
    if path.suffix not in formats:
        raise UsageError(f"--out: received {out!r}, expected a file that ends in {', '.join(formats)}")
    if path.is_dir():
        raise UsageError(f"--out: {out!r} is a directory: name a file in it")
    return path


def _drawn(picture: Any, found: Any, place: Path | None) -> dict[str, str]:
    """Draws the curves; where nobody asked for a certain file, a picture that cannot be is only told of."""
    path = place or found.members[0].directory / "reports" / "compare.png"
    try:
        data = picture.draw(found.members, path.suffix)
    except UsageError as error:
        if place is not None:
            raise
        print(f"no picture: {error}", file=sys.stderr)
        return {}
    storage.prepare_directory(path.parent)
    storage.write_bytes(path, data)
    return {"picture": str(path)}


def _text(found: Any, written: dict[str, str]) -> str:
    empty = [""] * len(found.members)
    rows: list[list[str]] = [["", *(member.name for member in found.members)]]
    for name, lines in found.sections.items():
        rows += [["", *empty], [_TITLES[name], *empty]] if name in _TITLES else []
        rows += [_line(row) for row in lines] or [[_NOTHING.get(name, "nothing is known"), *empty]]
    return "\n".join([aligned(rows), *([""] if written else []), *written.values()])


def _line(row: Any) -> list[str]:
    best = row.best
    cells = [
        _cell(value, row.steps[place] if row.steps else None, place in best) for place, value in enumerate(row.values)
    ]
    return [row.key, *cells]


def _cell(value: Any, step: int | None, is_better: bool) -> str:
    if value is None:
        return "-"
    text = number(value).replace("\n", " ")
    short = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    return f"{short}{'' if step is None else f' @{step}'}{' *' if is_better else ''}"
