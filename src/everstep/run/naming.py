"""Which run a name stands for: a path, or the name of a run below `runs/` without that prefix."""

import difflib
import logging
import os
from pathlib import Path

from everstep.storage import PathLike

logger = logging.getLogger(__name__)

RUNS = "runs"
"""The folder below which commands create runs, and look for them."""

_MAX_DEPTH = 3  # of runs below `runs/` that are suggested: the trials of a sweep are `SWEEP/trials/0`


def named_run(name: PathLike) -> str:
    """Returns the path of the run that a name stands for: `first` is `runs/first`, if there is no run `first` here.

    Where there is something else of that name here, such as data, a warning says which is taken. A name that stands for
    no such run, and a path that begins with `./` or `../`, is returned as it is.
    """
    given = os.fspath(name)
    below = Path(RUNS, given)
    is_path = Path(given).is_absolute() or given.split("/")[0] in (os.curdir, os.pardir)
    if not given or is_path or Path(given, "run.json").exists():
        return given
    if (below / "run.json").exists():
        if Path(given).exists() and given not in _told:
            _told.add(given)
            logger.warning("%r here is no run: the run %r is taken (./%s is the other)", given, str(below), given)
        return str(below)
    return str(below) if below.is_dir() and not Path(given).exists() else given


_told: set[str] = set()
"""The names of which a warning has said what they stand for."""


def runs_like(name: PathLike) -> str:
    """Returns a question with the runs below `runs/` that are named nearly so; without any, how runs are listed."""
    word = Path(name).name
    found = {Path(known).name: Path(RUNS, known) for known in run_names()}
    close = [known for known in found if word and known.startswith(word)]
    close = close or difflib.get_close_matches(word, found, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(str(found[known])) for known in sorted(close)[:3])}?"
    return "`everstep runs` lists the runs below 'runs'" if found else ""


def run_names() -> list[str]:
    """Returns the names of the runs below `runs/`, without that prefix."""
    records = [path for depth in range(1, _MAX_DEPTH + 1) for path in Path(RUNS).glob(f"{'*/' * depth}run.json")]
    return sorted(str(path.parent.relative_to(RUNS)) for path in records)
