"""`everstep catalog`."""

from typing import Annotated

import typer

from everstep.cli import aligned, new_app, options, print_json
from everstep.errors import UsageError
from everstep.projects.catalog import SHIPPED, Catalog
from everstep.projects.flow import FlowProject

app = new_app(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep catalog check mnist.raw",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of the catalog: mnist.raw.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Names of the catalog; all by default.")]
Version = Annotated[str | None, typer.Option(metavar="NAME", help="A version; the newest by default.")]


@app.callback()
def catalog() -> None:
    """List the data of a flow project, or check that it exists."""


@app.command("list", epilog="Example: everstep catalog list --project ~/demo")
def list_names(project: options.Project = None, json: options.Json = False) -> None:
    """List the names of a project's catalog: type, path, and whether data exists."""
    found = _opened(project)
    if json:
        print_json(found.as_dict())
        return
    rows = [("NAME", "TYPE", "DATA", "FILEPATH")]
    rows += [(name, found.entry(name).type, _state(found, name), found.entry(name).filepath) for name in found]
    print(aligned(rows))


@app.command(epilog="Example: everstep catalog show mnist.raw --json")
def show(name: Name, project: options.Project = None, version: Version = None, json: options.Json = False) -> None:
    """Show one name: its entry, its versions, and the fingerprint of its content."""
    found = _opened(project)
    shown = {"name": name, **found.entry(name).as_dict(), "written in": found.entry(name).origin}
    if found.entry(name).versioned:
        shown["versions"] = found.versions(name)
    if version is not None or found.exists(name):
        shown |= found.fingerprint(name, version)
    if json:
        print_json(shown)
    else:
        print(aligned([(key, str(value)) for key, value in shown.items()]))


@app.command(epilog="Example: everstep catalog check mnist.raw mnist.labels")
def check(names: Names = None, project: options.Project = None) -> None:
    """Check that data can be loaded: types are allowed, files and folders exist."""
    found = _opened(project)
    checked = list(names or found)
    found.check(checked)
    print(f"found {', '.join(checked)}" if checked else "the catalog is empty")


def _opened(project: str | None) -> Catalog:
    home = FlowProject.find(project)
    config = home.root / "config"
    files = [path for path in (config / "catalog.yaml", config / "local" / "catalog.yaml") if path.is_file()]
    if not files:
        raise UsageError(
            "does not exist",
            key="catalog",
            received=str(config / "catalog.yaml"),
            remedy="create it, and list the project's data in it",
        )
    found = Catalog.from_files(files, home.root)
    if any(found.entry(name).type not in SHIPPED for name in found):
        home.load()  # its own types are imported by name
    return found


def _state(catalog: Catalog, name: str) -> str:
    if not catalog.entry(name).versioned:
        return "there" if catalog.exists(name) else "missing"
    count = len(catalog.versions(name))
    return f"{count} version{'s' if count > 1 else ''}" if count else "missing"
