"""How a run is done again: the command that the record comes to."""

import dataclasses
import os
from pathlib import Path

from everstep import storage
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.frontends.layouts import COMPONENTS, FLOW
from everstep.frontends.project_copies import copy_component_project, copy_flow_project
from everstep.run.layouts import export_config, loop_directory
from everstep.run.reproduce.evidence import Evidence, stored_config


class Missing(UsageError):
    """A run cannot be done again, because something of it is gone, or it fails."""


@dataclasses.dataclass(frozen=True)
class Repetition:
    """A command that does a run again.

    Attributes:
      words: The words of the command line, after `everstep`.
      folder: The working directory for it.
      result: The run directory that comes of it.
      settings: The environment variables that the run had, of those that change what libraries compute.
    """

    words: list[str]
    folder: Path
    result: Path
    settings: dict[str, str]


def code_folder(run: Path, original: Evidence, project: Path | None = None) -> Path:
    """Returns the folder whose code a run was made of.

    Args:
      run: The run, as it was named.
      original: What it has left.
      project: Where the user says that it is.

    Raises:
      UsageError: A program trained it: nothing in the record says how.
      Missing: There is no such folder any more.
    """
    if project is not None and not project.is_dir():
        raise UsageError(f"--project {project}: there is no such folder")
    if original.record.get("flow"):
        return _flow_project(run, original, project)
    if loop_directory(run) != run:
        return (project or Path(os.path.abspath(run)).parent.parent).absolute()  # the folder itself may be a link
    if stored_config(original.directory / "config.yaml").get("experiment"):
        return (project or Path.cwd()).absolute()
    raise UsageError(
        f"{str(run)!r} was trained by a program, which its record does not hold: run that again in another directory, "
        f"then compare: everstep reproduce {run} --with OTHER"
    )


def plan(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    """Returns what does a run again, in a directory that is not there yet.

    Args:
      run: The run, as it was named.
      original: What it has left.
      into: Where to do it.
      code: The folder whose code it uses: what `code_folder` returned, or a copy of that.

    Raises:
      Missing: Something of it is gone.
    """
    settings = original.record["environment"].get("settings")
    how = _flow if original.record.get("flow") else _component if loop_directory(run) != run else _experiment
    found = how(run, original, into, code)
    return dataclasses.replace(found, settings=dict(settings) if isinstance(settings, dict) else {})


def _experiment(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    stored = original.directory / "config.yaml"
    words = ["train", f"--config-file={stored.absolute()}", f"--model-dir={into}", f"--mode={_mode(original)}"]
    words += ["--no-export", "trainer.tracking.mlflow=false", "trainer.tracking.wandb=false"]
    others = original.config.get("trainer", {}).get("tracking", {}).get("others", {})
    words += [f"~trainer.tracking.others.{name}" for name in others]
    return Repetition(words, code, into, {})


def _mode(original: Evidence) -> str:
    """Returns what the run was asked to do: as recorded, or as its numbers tell."""
    if isinstance(recorded := original.record.get("mode"), str):
        return recorded
    names = set(original.record["metrics"].get("validation", {}))
    names |= {f"validation_{name}" for name in names}
    evaluated = [step for step, row in original.numbers.items() if names & row.keys()]
    if not names:
        return "train"
    interval = original.config.get("trainer", {}).get("validation_interval")
    expected = interval if isinstance(interval, int) else 0
    late = len(evaluated) == 1 and len(original.numbers) > 1 and 0 < expected < evaluated[0]
    return "train_and_post_eval" if late else "train_and_eval"


def _flow(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    """Makes a copy of the project, whose files the run would write to, with the configuration that the run had."""
    stored = run / FLOW.settings
    settings = stored_config(stored if stored.is_file() else run / "config.yaml")
    if not {"task", "parameters", "catalog", "optimizer"} <= settings.keys():
        raise Missing(f"its configuration is gone: {str(stored)!r} is not there any more")
    copy = into / "project"
    copy_flow_project(code, copy, settings)
    words = ["flow", str(settings["task"]), f"--project={copy}", f"--model-dir={into / 'run'}"]
    words.append(f"--backend={original.record['backend']}")
    return Repetition(words, copy, into / "run", {})


def _flow_project(run: Path, original: Evidence, project: Path | None) -> Path:
    """Returns the project of a flow: the one that is named, or around the run, or where it was, or here."""
    recorded = Path(str(original.record["flow"].get("project", "")))
    here = Path.cwd()
    around = [*Path(os.path.abspath(run)).parents, *run.resolve().parents]  # the run, or `runs`, may be a link
    folders = [project.absolute()] if project else [*around, recorded, here, *here.parents]
    for folder in folders:
        if (folder / "config" / "parameters.yaml").is_file():
            return folder
    if project:
        raise UsageError(f"--project {project}: it is no project of flows, there is no config/parameters.yaml in it")
    raise Missing(f"its code is gone: there is no project {str(recorded)!r}, and none around the run (--project DIR)")


def _component(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    """Makes a project of the same code with the one run in it: the configuration that the run was exported with."""
    config = stored_config(_component_config(run))
    source = str(config.get("src_code_path") or ".")
    if not (code / source).resolve().is_relative_to(code.resolve()):
        raise Missing(f"src_code_path: received {source!r}, which leads out of the project {str(code)!r}")
    if not (code / source).is_dir():
        raise Missing(f"its code is gone: there is no folder {str(code / source)!r}")
    copy_component_project(code, os.path.relpath((code / source).resolve(), code.resolve()), into)
    name = run.resolve().name  # it may be called "."
    folder = into / "runs" / name
    folder.mkdir(parents=True)
    storage.write_text(folder / "config.yaml", dialect.dump(config))
    words = ["run", name, f"--project-root={into}", f"--backend={original.record['backend']}"]
    return Repetition(words, into, folder / COMPONENTS.training, {})


def _component_config(run: Path) -> Path:
    exported = export_config(run)
    if exported is not None:
        return exported
    files = sorted(run.glob("*.yaml"))
    if len(files) != 1:
        raise Missing(f"its configuration is gone: {str(run)!r} has {len(files)} *.yaml files, and no export")
    return files[0]
