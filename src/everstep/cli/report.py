"""`everstep report`."""

import webbrowser
from typing import Annotated

import typer

from everstep import report as page
from everstep.cli.commands import new_app
from everstep.remote.urls import is_url
from everstep.remote.working import local_view

app = new_app()

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories, or URLs; several are compared.")]
Output = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The file; reports/report.html in the run by default."),
]
Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


@app.command(epilog="Example: everstep report runs/first runs/second --open")
def report(runs: Runs, output: Output = None, open_: Open = False) -> None:
    """Write a page to look at: curves, errors, the worst samples.

    It is one HTML file that needs no network. Several runs stand side by side, joined sample by sample; the first is
    what the others are compared with, and the file is its reports/comparison.html. Of a run at a URL a copy is fetched,
    and the file is in that copy.
    """
    path = page.write([_local(run) for run in runs], output)
    print(path)
    if open_:
        webbrowser.open(path.resolve().as_uri())


def _local(run: str) -> str:
    """Returns where a run is on this machine; one at a URL is fetched, but for its checkpoints."""
    return str(local_view(run, checkpoints=False)) if is_url(run) else run
