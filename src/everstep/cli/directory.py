"""Where a run lives: the default directory, and whether it can be used at all."""

import hashlib
from pathlib import Path

from everstep import redaction, storage
from everstep.cli.request import Resolved
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.remote.urls import checked, is_url


def run_directory(model_dir: str | None, resolved: Resolved) -> Path | str:
    """Returns the directory of the run, which is not created yet; None: the default one; a URL: itself.

    Raises:
      UsageError: It is a file, or cannot be written to; it is no URL of a store.
    """
    if model_dir == "":
        raise UsageError("--model-dir: received '', name a directory for the run")
    if model_dir and is_url(model_dir):
        return checked(model_dir, "--model-dir")
    directory = default_directory(resolved) if model_dir is None else Path(model_dir)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    try:
        storage.prepare_directory(existing)
    except UsageError as error:
        raise UsageError(f"--model-dir {directory}: {error}") from error
    return directory


def default_directory(resolved: Resolved) -> Path:
    """Returns `runs/<experiment>-<digest of the configuration>`: the same request finds its run again.

    Secrets do not count: with a new password it is the same run still, and a digest must not help to guess one. Nor
    does whether a trace is taken.
    """
    params = resolved.shown.replace(trainer={"profile": ""})
    text = dialect.dump(redaction.tree(params.as_dict()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path("runs", f"{resolved.experiment.replace('/', '-')}-{digest[:10]}")
