"""A run before any of its code is imported: its folder `runs/<name>`, its configuration, and where its classes are.

training/           the run directory of the loop: state, history, events; what a run resumes from
run.json …          links into it, so that the folder itself can be read as a run directory
logs/               links to the TensorBoard events
exported/           the best epoch: savedmodel/ (or model.pt2, or an estimator), config.yaml, export.json
reports/            the evaluation, sample by sample
validation_report.csv, eval_report.csv, eval_report_summary.csv    copies from reports/
run_id.txt          the run's id, the same over all attempts
"""

import contextlib
import dataclasses
import logging
import os
import uuid
from pathlib import Path

import filelock

from everstep import storage
from everstep.errors import UsageError
from everstep.projects import COMPONENTS
from everstep.projects.components.config import (
    CLASSES,
    ConfigStruct,
    augments,
    find_config,
    load_run_config,
    origin_of,
)
from everstep.projects.components.project import Project
from everstep.run import saved_step, submitted

logger = logging.getLogger(__name__)

_LINKS = ("run.json", "history.csv", "checkpoints", "best", "train", "validation")
_EVENTS = ("train", "validation")
_SHOWN = {
    "validation rows": "validation_report.csv",
    "test rows": "eval_report.csv",
    "page": "reports/report.html",
    "model card": "README.md",
    "exported": "exported",
}


class RunFolder:
    """The paths of a run, and the files in it that belong to no single phase.

    Args:
      project_root: The project.
      run_name: The name of the run: one part of a path.

    Raises:
      UsageError: It is no such name.
    """

    def __init__(self, project_root: storage.PathLike, run_name: str) -> None:
        if not run_name or Path(run_name).name != run_name or run_name.startswith("."):
            name = Path(run_name).name.strip(".")
            remedy = f"did you mean {name!r}?" if name and name != "runs" else ""
            raise UsageError("must be the name of a folder in runs/", key="run_name", received=run_name, remedy=remedy)
        self.name = run_name
        self.path = Path(project_root).resolve() / "runs" / run_name
        self.training = self.path / COMPONENTS.training
        self.best = self.training / "best"
        self.exported = (self.path / COMPONENTS.export_record).parent
        self.reports = (self.path / COMPONENTS.results).parent

    def remove_temporary_files(self) -> None:
        """Removes what a killed process left half written; call it while holding the folder's lock."""
        for folder in (self.path, self.training, self.reports):
            _remove_temporary(folder)
        spool = self.path / "spool"
        if spool.is_dir():
            # `everstep runs sync` may be at work there: it holds this lock.
            lock = filelock.FileLock(spool / "mlflow.lock", thread_local=False, fallback_to_soft=False)
            with contextlib.suppress(filelock.Timeout, OSError), lock.acquire(timeout=0):
                _remove_temporary(spool)

    def step(self) -> int | None:
        """Returns the step of the newest checkpoint, from which training resumes; None if nothing is saved yet."""
        return saved_step(self.training)

    def run_id(self) -> str:
        """Returns the run's id; the first call creates it."""
        path = self.path / "run_id.txt"
        if not path.exists() or not path.read_text("utf-8").strip():
            storage.write_text(path, f"{uuid.uuid4().hex}\n")
        return path.read_text("utf-8").strip()

    def shown_files(self) -> dict[str, Path]:
        """Returns what a run has left for people, as far as it exists, by what it is."""
        return {label: self.path / name for label, name in _SHOWN.items() if (self.path / name).exists()}

    def link(self) -> None:
        """Links the parts of the loop's run directory that exist into this one, under the same names."""
        (self.path / "logs").mkdir(exist_ok=True)
        links = {self.path / name: Path(self.training.name, name) for name in _LINKS}
        links |= {self.path / "logs" / name: Path("..", self.training.name, name) for name in _EVENTS}
        for link, target in links.items():
            if link.exists() or link.is_symlink() or not (link.parent / target).exists():
                continue
            try:
                os.symlink(target, link, target_is_directory=not target.suffix)
            except OSError as error:
                logger.warning("cannot create the link %s to %s: %s", link, target, error.strerror)


def _remove_temporary(folder: Path) -> None:
    for entry in list(folder.iterdir()) if folder.is_dir() else ():
        if storage.is_temporary(entry):
            storage.remove_directory(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run whose configuration is valid.

    Attributes:
      folder: The run's folder.
      config: The configuration, with the folder of the data that is used.
      project: The project's classes, not imported yet.
    """

    folder: RunFolder
    config: ConfigStruct
    project: Project

    def require_modules(self) -> None:
        """Checks that the modules of all classes exist; importing them would import Keras.

        Raises:
          UsageError: One does not; names its key and similar modules.
        """
        for key in (*CLASSES, *(["augmentor_class"] if augments(self.config) else [])):
            self.project.require_module(self.config[key], key, origin_of(self.config, key))


def open_run(run_name: str, project_root: str | Path = ".", data_dir: str | Path | None = None) -> OpenedRun:
    """Reads a run's configuration, without Keras and without the project's code.

    Args:
      run_name: The folder in `runs/` with the run's config file.
      project_root: The project.
      data_dir: The folder of the data, in place of the one in the config file.

    Raises:
      UsageError: There is no such run, or its configuration is invalid; one line for every problem.
    """
    root = Path(project_root).expanduser().resolve()
    folder = RunFolder(root, run_name)
    copies = submitted(folder.path)
    config = load_run_config(copies.config if copies else find_config(folder.path))
    if data_dir is not None:
        config.data_dir = str(Path(data_dir).expanduser().resolve())
    elif config.data_dir is not None:  # relative to the project
        config.data_dir = str((root / Path(config.data_dir).expanduser()).resolve())
    if config.data_dir is not None and not Path(config.data_dir).exists():
        origin = "the argument data_dir" if data_dir is not None else origin_of(config, "data_dir")
        raise UsageError("does not exist", key="data_dir", received=config.data_dir, origin=origin)
    sources = copies.sources if copies else None
    return OpenedRun(folder, config, Project(root, config.src_code_path, origin_of(config, "src_code_path"), sources))
