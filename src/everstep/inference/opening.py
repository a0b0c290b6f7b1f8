"""From a name to a model on this machine, wherever it is kept; what had to be fetched is gone again after use."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from everstep.errors import UsageError
from everstep.inference.finding import Found, find, run_of
from everstep.inference.mlflow_models import fetched

_RUN = re.compile(r"(?:runs:/)?([0-9a-f]{32})(?:/(.+))?")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Found]:
    """Yields what a name means.

    Args:
      name: As for `find`; or the id of a run that only MLflow knows: `<id>`, `runs:/<id>`, `runs:/<id>/<artifact>`.

    Raises:
      UsageError: There is no such thing, or it cannot be fetched.
    """
    run = _RUN.fullmatch(name.rstrip("/"))
    if run is None or Path(name).exists():
        yield find(name)
        return
    identity, artifact = run.groups()
    here = None if artifact else _here(identity)
    if here is not None:
        yield here
        return
    with fetched(identity, artifact or "") as found:
        yield found


def _here(identity: str) -> Found | None:
    """Returns a run whose directory is below the working directory or its project, if that has a model."""
    for root in (Path(), _project()):
        with contextlib.suppress(UsageError):
            if root is not None:
                return find(str(run_of(identity, root)))
    return None


def _project() -> Path | None:
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), None)
