"""`everstep report`."""

import webbrowser
from typing import Annotated

import typer

from everstep import report as page
from everstep.cli import completion
from everstep.cli.command import new_app
from everstep.trained import local_run

app = new_app()

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...", help="Run directories, or URLs; several are compared.", autocompletion=completion.runs
    ),
]
Output = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The file; reports/report.html in the run by default."),
]
Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


@app.command(epilog="Example: everstep report runs/first runs/second --open")
def report(runs: Runs, output: Output = None, open_: Open = False) -> None:
    """Write an HTML report: curves, errors, the worst samples.

    It is one file that needs no network. Several runs are shown side by side, joined sample by sample; the others are
    compared with the first, and the file is its reports/comparison.html. Of a run at a URL a copy is fetched, and the
    file is in that copy.
    """
    path = page.write([local_run(run, checkpoints=False) for run in runs], output)
    print(path)
    if open_:
        webbrowser.open(path.resolve().as_uri())
