"""`everstep new`."""

import importlib.util
import keyword
import re
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from everstep import storage
from everstep.cli import new_app, print_last
from everstep.errors import UsageError, nearest

app = new_app()

_SUFFIX = ".tmpl"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NEXT = {
    "flow": "pip install -e . && python train.py --task Mnist_B",
    "components": "everstep check baseline && everstep run baseline",
    "task": "pip install -e . && everstep train {{package}}/digits",
}
_WITH_MNIST = {"flow": "data/raw/mnist.npz", "components": "data/mnist.npz"}

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="The folder to create; its name is the project's.")]
Template = Annotated[
    str, typer.Option("--template", metavar="NAME", help="flow, components or task: how experiments are written.")
]


@app.command(epilog="Example: everstep new demo --template flow")
def new(project: Project, template: Template = "flow") -> None:
    """Create a project: config, data, code, tests and a sample.

    flow: tasks of three steps, parameters and data in YAML. components: a data loader, a preprocessor, a model builder.
    task: an everstep.Task in a package of its own. The sample is MNIST, and its data is included.
    """
    names = sorted(entry.name for entry in _templates().iterdir() if entry.is_dir())
    if template not in names:
        raise UsageError(
            "there is no such template", key="--template", received=template, remedy=nearest(template, names)
        )
    folder = Path(project).expanduser().absolute()
    values = _values(folder)
    _require_empty(folder)
    if folder.is_dir():
        _create(folder, template, values)
    else:
        with storage.atomic_path(folder) as temporary:
            _create(temporary, template, values)
    print_last(f"{project} is ready:\n\n  cd {project} && {_filled(_NEXT[template], values)}")


def _templates() -> Traversable:
    return resources.files("everstep.projects") / "templates"


def _values(folder: Path) -> dict[str, str]:
    """Returns the names that are filled into the template's files.

    Raises:
      UsageError: The folder's name cannot be that of a package.
    """
    name, package = folder.name, folder.name.replace("-", "_").lower()
    if not _NAME.fullmatch(name) or keyword.iskeyword(package):
        raise UsageError(
            "expected a name of letters, digits, - and _ that begins with a letter", key="PROJECT", received=name
        )
    if _is_taken(package):
        raise UsageError(
            "is the name of an installed package", key="PROJECT", received=name, remedy="choose another name"
        )
    return {"name": name, "package": package}


def _is_taken(package: str) -> bool:
    """Returns whether a project of this name would hide a module of Python or an installed package."""
    spec = None if package in sys.stdlib_module_names else importlib.util.find_spec(package)
    folders = Path(spec.origin).parts if spec is not None and spec.origin else ()
    return (
        package == "everstep"
        or package in sys.stdlib_module_names
        or bool({"site-packages", "dist-packages"} & set(folders))
    )


def _require_empty(folder: Path) -> None:
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(
            "exists and is not empty; nothing was written",
            key="PROJECT",
            received=str(folder),
            remedy="name another folder",
        )
    storage.prepare_directory(folder.parent)


def _create(folder: Path, template: str, values: dict[str, str]) -> None:
    _render(_templates() / template, folder, values)
    if template in _WITH_MNIST:
        _copy_mnist(folder / _WITH_MNIST[template])


def _render(source: Traversable, target: Path, values: dict[str, str]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        name = {"PACKAGE": values["package"], "RUNS": "runs"}.get(entry.name, entry.name)  # git ignores the latter
        name = f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name
        if entry.is_dir():
            _render(entry, target / name, values)
        elif name.endswith(_SUFFIX):
            storage.write_text(target / name.removesuffix(_SUFFIX), _filled(entry.read_text("utf-8"), values))


def _filled(text: str, values: dict[str, str]) -> str:
    """Returns a text with the names in their places; nothing is evaluated."""
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _copy_mnist(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((resources.files("everstep.recipes") / "data" / "mnist.npz").read_bytes())
