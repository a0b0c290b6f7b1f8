"""`everstep runs tree`: which run was forked from which, below a directory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import completion, options
from everstep.cli.output import aligned
from everstep.cli.runs_cells import main_metrics, progress, text_or_dash
from everstep.errors import UsageError
from everstep.run import FORKED_FROM, Overview, named_run, overview, runs_like
from everstep.storage import json_text

_MOST_CHANGES = 3

Root = Annotated[
    str | None,
    typer.Argument(metavar="ROOT", help="Where to look; runs by default.", autocompletion=completion.runs),
]


def tree(root: Root = None, json: options.Json = False) -> None:
    """Show which runs were forked from which, at which step, and what was changed."""
    place = Path(named_run(root) if root is not None else "runs")
    if root is not None and not place.is_dir():
        raise UsageError("is not a directory", key="ROOT", received=root, remedy=runs_like(root))
    found = [run for run in overview(place) if run.record]
    known = {run.record["id"]: run for run in found if run.record}
    lines = list(_lines(found, known))
    if json:
        print(json_text([{"directory": str(run.directory), FORKED_FROM: _origin(run)} for run, _ in lines]))
    elif lines:
        print(aligned([[f"{indent}{run.directory}", *_cells(run, known)] for run, indent in lines]))
    else:
        print(f"no runs in {str(place)!r}")


def _lines(found: list[Overview], known: Mapping[str, Overview]) -> Iterator[tuple[Overview, str]]:
    """Yields each run, below the one that it was forked from, with its indentation."""
    children: dict[str, list[Overview]] = {}
    for run in found:
        parent = str((_origin(run) or {}).get("run"))
        children.setdefault(parent if parent in known else "", []).append(run)

    def below(parent: str, indent: str) -> Iterator[tuple[Overview, str]]:
        for run in sorted(children.get(parent, []), key=lambda run: (_step(run), str(run.directory))):
            yield run, indent
            yield from below((run.record or {})["id"], indent + "  ")

    yield from below("", "")


def _origin(run: Overview) -> dict[str, Any] | None:
    return (run.record or {}).get(FORKED_FROM)


def _step(run: Overview) -> int:
    return int((_origin(run) or {}).get("step", 0))


def _cells(run: Overview, known: Mapping[str, Overview]) -> list[str]:
    record, origin = run.record or {}, _origin(run)
    attempts = record.get("attempts") or [{}]
    changed = [f"{change['key']} {change['old']} -> {change['new']}" for change in attempts[0].get("changes", [])]
    more = [f"and {len(changed) - _MOST_CHANGES} more"] if len(changed) > _MOST_CHANGES else []
    at = "" if origin is None else f"at step {origin['step']}"
    gone = f" of {origin['directory']}" if origin is not None and origin["run"] not in known else ""
    told = ", ".join([*changed[:_MOST_CHANGES], *more]) if origin else ""
    return [at + gone, text_or_dash(run.state), progress(run), main_metrics(run), told]
