"""The registry of layouts: where entry points keep the parts of a run.

No module of the core knows what an entry point calls its files. Each entry point registers a `RunLayout`; those
of this package are in `projects/layouts.py`.

A package with an entry point of its own names the module that registers its layout in its `pyproject.toml`:

    [project.entry-points."everstep.layouts"]
    mine = "my_package.layout"
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep.checkpoint import newest_step
from everstep.checkpoint.remote import register_progress_files
from everstep.entry_points import load_modules

ENTRY_POINTS = "everstep.layouts"
"""The group of the entry points."""


@dataclasses.dataclass(frozen=True)
class RunLayout:
    """The files of an entry point's runs that other layers look for, relative to the run's directory.

    Attributes:
      name: The entry point.
      training: The folder in which the loop trains; empty where that is the run's directory itself.
      before_record: Files and folders that may exist before `run.json`.
      progress: Files that say how far a run is; a store receives them after everything that they refer to.
      settings: The entry point's own configuration.
      logged: The numbers that the user's code logged: on each line a step, a name, and the number in Python's spelling.
      export_config: The configuration that the export was trained with.
      export_record: Facts about the export: the epoch, the metric that selected it, the code.
      models: Exported models, the preferred one first.
      programs: Exported PyTorch programs.
      results: The means of the last evaluation.
      described: Files for people, each with a line about it.
      parts: Everything that a run writes into a folder whose config file is the user's, in the order of removal.
    """

    name: str
    training: str = ""
    before_record: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()
    settings: str = ""
    logged: str = ""
    export_config: str = ""
    export_record: str = ""
    models: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    results: str = ""
    described: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parts: tuple[str, ...] = ()


_layouts: dict[str, RunLayout] = {}


def register_layout(layout: RunLayout) -> RunLayout:
    """Adds the layout of an entry point, and returns it; one of the same name is replaced."""
    _layouts[layout.name] = layout
    register_progress_files(*layout.progress)
    return layout


def layouts() -> list[RunLayout]:
    """Returns all layouts: of this package, and of installed ones."""
    load_modules(ENTRY_POINTS, "layouts")
    return list(_layouts.values())


def loop_directories(directory: Path) -> list[Path]:
    """Returns the directories in which the loop may train a run: the run's own, and those inside of it."""
    return [directory, *(directory / layout.training for layout in layouts() if layout.training)]


def loop_directory(directory: Path) -> Path:
    """Returns the directory in which the loop has trained a run; the run's own where there is none inside of it."""
    inside = (path for path in loop_directories(directory)[1:] if (path / "run.json").is_file())
    return next(inside, directory)


def saved_step(directory: Path) -> int | None:
    """Returns the step from which a run resumes, wherever the loop trains it; None if nothing is saved."""
    return newest_step(loop_directory(directory))


def project_layout(directory: Path) -> RunLayout | None:
    """Returns the layout of a run whose config file is the user's own; None where the whole directory is the run's."""
    for layout in layouts():
        if layout.training and (directory / layout.training / "run.json").is_file() and any(directory.glob("*.yaml")):
            return layout
    return None


def run_folder(directory: Path) -> Path:
    """Returns the run's folder for a directory that the loop trains in, which may be inside of it."""
    inside = directory.name in {layout.training for layout in layouts()} and any(directory.parent.glob("*.yaml"))
    return directory.parent if inside else directory


def export_record(directory: Path) -> Path | None:
    """Returns the file with facts about a run's export; None where there is none."""
    return _first(directory, (layout.export_record for layout in layouts()))


def export_config(directory: Path) -> Path | None:
    """Returns the configuration that a run's export was trained with; None where there is none."""
    return _first(directory, (layout.export_config for layout in layouts()))


def results_file(directory: Path) -> Path | None:
    """Returns the file with the means of a run's last evaluation; None where there is none."""
    return _first(directory, (layout.results for layout in layouts()))


def _first(directory: Path, names: Iterator[str]) -> Path | None:
    return next((directory / name for name in names if name and (directory / name).is_file()), None)
