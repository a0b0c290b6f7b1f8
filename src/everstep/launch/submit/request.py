"""What is submitted: a run of a project of components, or any command that trains in a run directory."""

import dataclasses
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError
from everstep.frontends.components.config import find_config
from everstep.frontends.components.run_folder import open_run


@dataclasses.dataclass(frozen=True)
class Request:
    """A run to submit.

    Attributes:
      directory: The run's folder.
      root: Where the command is run; its code version is recorded.
      title: What the job is called: `<project>_<run>`.
      command: Program and arguments.
      config: The config file, of a project's run.
      sources: The folder of a project's classes; of a command, the root.
      data_dir: The data, where it is known.
    """

    directory: Path
    root: Path
    title: str
    command: tuple[str, ...]
    config: Path | None
    sources: Path
    data_dir: Path | None

    @property
    def has_copies(self) -> bool:
        """Whether it is run from the copies of its config file and classes; a command uses what is there."""
        return self.config is not None


def project_run(run_name: str, project_root: str, data_dir: str | None = None, more: Sequence[str] = ()) -> Request:
    """Returns the request for `everstep run RUN_NAME`, with `more` of its options.

    Raises:
      UsageError: There is no such run, its config file cannot be used, or there is no such data.
    """
    root = Path(project_root).expanduser().resolve()
    if not root.is_dir():
        raise UsageError(f"--project-root: received {project_root!r}, which is no folder")
    opened = open_run(run_name, root, data_dir)
    data = opened.config.data_dir
    words = ["run", run_name, "--project-root", str(root)]
    words += [] if data_dir is None else ["--data-dir", str(data)]
    words += more
    return Request(
        directory=opened.folder.path,
        root=root,
        title=_title(str(opened.config.project_name), run_name),
        command=(sys.executable, "-m", "everstep", *words),
        config=find_config(opened.folder.path),
        sources=opened.project.source,
        data_dir=None if data is None else Path(data),
    )


def any_command(command: Sequence[str], model_dir: str | None, data_dir: str | None = None) -> Request:
    """Returns the request for a command that trains in `model_dir`.

    Raises:
      UsageError: No directory is named, or there is no such program or data.
    """
    if not model_dir:
        raise UsageError("--model-dir: missing; name the directory that the command after -- trains in")
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"there is no program {command[0]!r}: check the command after --")
    directory = Path(model_dir).expanduser().resolve()
    return Request(
        directory=directory,
        root=Path.cwd(),
        title=_title(Path.cwd().name, directory.name),
        command=(str(Path(program).absolute()), *command[1:]),
        config=None,
        sources=Path.cwd(),
        data_dir=_existing(Path(data_dir).expanduser().resolve(), "--data-dir") if data_dir else None,
    )


def _existing(path: Path, said: str) -> Path:
    if not path.exists():
        raise UsageError(f"{said}: there is no {str(path)!r}")
    return path


def _title(project: str, run: str) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{project}_{run}")
