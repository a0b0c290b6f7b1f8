"""The folder of a run, `runs/<name>`: the user's config file, and what a run writes beside it.

training/           the run directory of the loop: state, history, events; what a run resumes from
run.json …          links into it, so that the folder is a run directory for whoever looks at one
logs/               links to the TensorBoard events
exported/           the best epoch: savedmodel/ (or model.pt2, or an estimator), config.yaml, export.json
reports/            the evaluation, sample by sample
validation_report.csv, eval_report.csv, eval_report_summary.csv    copies from reports/
run_id.txt          the run's id, the same over all attempts
"""

import contextlib
import logging
import os
import uuid
from pathlib import Path

import filelock

from everstep import storage
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

_LINKS = ("run.json", "history.csv", "checkpoints", "best", "train", "validation")
_EVENTS = ("train", "validation")


class RunFolder:
    """Where everything of a run is.

    Args:
      project_root: The project.
      run_name: The name of the run: one part of a path.

    Raises:
      UsageError: It is no such name.
    """

    def __init__(self, project_root: storage.PathLike, run_name: str) -> None:
        if not run_name or Path(run_name).name != run_name or run_name.startswith("."):
            raise UsageError(f"run_name: received {run_name!r}, expected the name of a folder in runs/")
        self.name = run_name
        self.path = Path(project_root).resolve() / "runs" / run_name
        self.training = self.path / "training"
        self.best = self.training / "best"
        self.exported = self.path / "exported"
        self.reports = self.path / "reports"

    def tidy(self) -> None:
        """Removes what a killed process left half written; call it when the folder is this process's alone."""
        for folder in (self.path, self.training, self.reports):
            _remove_temporary(folder)
        spool = self.path / "spool"
        if spool.is_dir():
            # `everstep runs sync` may be at work there: it holds this lock.
            lock = filelock.FileLock(spool / "mlflow.lock", thread_local=False, fallback_to_soft=False)
            with contextlib.suppress(filelock.Timeout, OSError), lock.acquire(timeout=0):
                _remove_temporary(spool)

    def step(self) -> int | None:
        """Returns the step from which training goes on, or at which it ended; None where nothing is saved yet."""
        saved = [entry.name for entry in self.path.glob("training/checkpoints/*") if entry.name.isdecimal()]
        return max(map(int, saved), default=None)

    def run_id(self) -> str:
        """Returns the run's id; the first call makes it."""
        path = self.path / "run_id.txt"
        if not path.exists() or not path.read_text("utf-8").strip():
            storage.write_text(path, f"{uuid.uuid4().hex}\n")
        return path.read_text("utf-8").strip()

    def link(self) -> None:
        """Shows what there is of the loop's run directory in this one, under the names that a run directory has."""
        targets = {self.path / name: Path("training", name) for name in _LINKS}
        targets |= {self.path / "logs" / name: Path("..", "training", name) for name in _EVENTS}
        (self.path / "logs").mkdir(exist_ok=True)
        for link, target in targets.items():
            self._link(link, target)

    def _link(self, link: Path, target: Path) -> None:
        if link.exists() or link.is_symlink() or not (link.parent / target).exists():
            return
        try:
            os.symlink(target, link, target_is_directory=not target.suffix)
        except OSError as error:
            logger.warning("%s cannot be a link to %s: %s", link, target, error.strerror)


def _remove_temporary(folder: Path) -> None:
    for entry in list(folder.iterdir()) if folder.is_dir() else ():
        if storage.is_temporary(entry):
            storage.remove_directory(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
