"""Where a run lives: the default directory, and whether it can be used at all."""

import hashlib
from pathlib import Path

from everstep import redaction, storage
from everstep.cli.request import Resolved
from everstep.config import dialect
from everstep.errors import UsageError


def run_directory(model_dir: str | None, resolved: Resolved) -> Path:
    """Returns the directory of the run, which is not created yet; None: the default one.

    Raises:
      UsageError: It is a file, or cannot be written to.
    """
    if model_dir == "":
        raise UsageError("--model-dir: received '', name a directory for the run")
    if model_dir and "://" in model_dir:
        raise UsageError(f"--model-dir: received {model_dir!r}, but runs live in local directories only: name one")
    directory = default_directory(resolved) if model_dir is None else Path(model_dir)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    try:
        storage.prepare_directory(existing)
    except UsageError as error:
        raise UsageError(f"--model-dir {directory}: {error}") from error
    return directory


def default_directory(resolved: Resolved) -> Path:
    """Returns `runs/<experiment>-<digest of the configuration>`: the same request finds its run again.

    Secrets do not count: with a new password it is the same run still, and a digest must not help to guess one.
    """
    text = dialect.dump(redaction.tree(resolved.params.as_dict()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path("runs", f"{resolved.experiment.replace('/', '-')}-{digest[:10]}")
