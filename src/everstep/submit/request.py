"""What is submitted: a run of a project of components, or any command that trains in a run directory."""

import dataclasses
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class SubmitRequest:
    """A run to submit.

    Attributes:
      directory: The run's folder.
      root: The working directory of the command; its code version is recorded.
      title: The name of the job: `<project>_<run>`.
      command: Program and arguments.
      config: The config file of a project's run; None for a command.
      sources: The folder of a project's classes; for a command, the root.
      data_dir: The data; None if it is unknown.
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
        """Whether it runs from the copies of its config file and classes; a command uses the files in place."""
        return self.config is not None

    def job_command(self, snapshot: Path, max_restarts: int, *options: str) -> list[str]:
        """Returns the command that an executor runs: `job.py`, which supervises this command.

        Args:
          snapshot: The folder of the snapshot.
          max_restarts: The maximum number of restarts.
          *options: Further options of `job.py`.
        """
        job = [sys.executable, "-m", "everstep.submit.job", str(snapshot)]
        return [*job, "--max-restarts", str(max_restarts), *options, "--", *self.command]

    def log_file(self, job: object) -> Path:
        """Returns the file with the standard error of a job."""
        return self.directory / f"log-{job}.err"


def project_run(
    run_name: str, project_root: str, data_dir: str | None = None, more: Sequence[str] = ()
) -> SubmitRequest:
    """Returns the request for `everstep run RUN_NAME`.

    Args:
      run_name: The run's folder in the project's `runs/`.
      project_root: The project.
      data_dir: The data, in place of the config file's.
      more: Further options of `everstep run`.

    Raises:
      UsageError: The run or the data does not exist, or the config file cannot be used.
    """
    from everstep.projects.components import find_config, open_run

    root = Path(project_root).expanduser().resolve()
    if not root.is_dir():
        raise UsageError("is not a folder", key="--project-root", received=project_root)
    opened = open_run(run_name, root, data_dir)
    data = opened.config.data_dir
    words = ["run", run_name, "--project-root", str(root)]
    words += [] if data_dir is None else ["--data-dir", str(data)]
    words += more
    return SubmitRequest(
        directory=opened.folder.path,
        root=root,
        title=_title(str(opened.config.project_name), run_name),
        command=(sys.executable, "-m", "everstep", *words),
        config=find_config(opened.folder.path),
        sources=opened.project.source,
        data_dir=None if data is None else Path(data),
    )


def any_command(command: Sequence[str], model_dir: str | None, data_dir: str | None = None) -> SubmitRequest:
    """Returns the request for a command that trains in `model_dir`.

    Raises:
      UsageError: No directory is given, or the program or the data does not exist.
    """
    if not model_dir:
        raise UsageError(
            "is required for a command", key="--model-dir", remedy="name the directory that the command trains in"
        )
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(
            "there is no such program", key="COMMAND", received=command[0], remedy="check the command after --"
        )
    data = Path(data_dir).expanduser().resolve() if data_dir else None
    if data is not None and not data.exists():
        raise UsageError("does not exist", key="--data-dir", received=str(data))
    directory = Path(model_dir).expanduser().resolve()
    return SubmitRequest(
        directory=directory,
        root=Path.cwd(),
        title=_title(Path.cwd().name, directory.name),
        command=(str(Path(program).absolute()), *command[1:]),
        config=None,
        sources=Path.cwd(),
        data_dir=data,
    )


def _title(project: str, run: str) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{project}_{run}")
