"""`everstep runs compare`: several runs side by side."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep import storage
from everstep.checkpoint.remote import is_url
from everstep.cli import completion, options
from everstep.cli.output import aligned, number
from everstep.errors import UsageError
from everstep.run import named_run, read_run_group
from everstep.storage import json_text
from everstep.trained import local_run

_MAX_CELL = 44
_BEST_TRIALS = 4  # of a sweep
_TITLES = {
    "configuration": "CONFIGURATION",
    "metrics": "METRICS",
    "evaluations": "EVALUATIONS",
    "course": "TIME AND SPEED",
    "surroundings": "CODE, MACHINE AND DATA",
}
_NO_ROWS = {"configuration": "no value differs", "surroundings": "nothing differs"}

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR",
        help="Run directories, or URLs; a sweep stands for its best.",
        autocompletion=completion.runs,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE", help="The picture of the curves, .png, .svg or .pdf; reports/compare.png in the first."
    ),
]
Html = Annotated[bool, typer.Option("--html", help="Write the page of everstep report as well: sample by sample.")]


def compare(runs: Runs, out: Out = None, html: Html = False, json: options.Json = False) -> None:
    """Compare runs: values that differ, metrics, speed, code, machine and data, and curves as a picture.

    Code, environment and data are a line each; --json has every package and digest that differs.

    A star marks the better value, where it is known which values are good. With --json a picture is drawn only if
    --out names it.
    """
    from everstep import report
    from everstep.report import side_by_side

    if out is not None:
        if Path(out).suffix not in side_by_side.FORMATS:
            expected = f"expected a file that ends in {', '.join(side_by_side.FORMATS)}"
            raise UsageError(expected, key="--out", received=out)
        if Path(out).is_dir():
            raise UsageError("is a directory", key="--out", received=out, remedy="name a file in it")
        if not side_by_side.can_draw():
            side_by_side.draw(())  # raises the error that names what is missing
    members = [one for run in runs for one in _members(run)]
    directories = [Path(local_run(run, checkpoints=False)) for run in members]
    found = side_by_side.side_by_side(directories)
    written = {}
    if out is not None or not json:
        path = Path(out) if out is not None else found.members[0].directory / "reports" / "compare.png"
        try:
            data = side_by_side.draw(found.members, path.suffix)
        except UsageError as error:
            if out is not None:
                raise
            print(f"no picture: {error}", file=sys.stderr)
        else:
            storage.prepare_directory(path.parent)
            storage.write_bytes(path, data)
            written["picture"] = str(path)
    if html:
        written["page"] = str(report.write(directories))
    print(json_text(found.as_dict() | written) if json else _comparison(found, written))


def _members(run: str) -> list[str]:
    """Returns the runs that a directory stands for: of a sweep, its best trials."""
    sweep = None if is_url(run) else read_run_group(Path(named_run(run)))
    return [run] if sweep is None else [str(path) for path in sweep.best(_BEST_TRIALS)]


def _comparison(found: Any, written: dict[str, str]) -> str:
    empty = [""] * len(found.members)
    rows: list[list[str]] = [["", *(member.name for member in found.members)]]
    for name, lines in found.shown_sections.items():
        rows += [["", *empty], [_TITLES[name], *empty]] if name in _TITLES else []
        rows += [[row.key, *_cells(row, found.members)] for row in lines] or [
            [_NO_ROWS.get(name, "nothing is known"), *empty]
        ]
    return "\n".join([aligned(rows), *([""] if written else []), *written.values()])


def _cells(row: Any, members: Any) -> list[str]:
    """Returns a row's values; `@STEP` or `@epoch N` after those of a certain step, a star after the best."""
    cells = []
    for place, value in enumerate(row.values):
        text = "-" if value is None else number(value).replace("\n", " ")
        text = text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"
        step = row.steps[place] if row.steps else None
        at = "" if value is None or step is None else f" @{members[place].place(step)}"
        cells.append(f"{text}{at}{' *' if place in row.best else ''}")
    return cells
