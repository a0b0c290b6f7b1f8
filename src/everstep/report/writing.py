"""From run directories to a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.report.comparison import compare
from everstep.report.configuration import differences, incomparable
from everstep.report.runs import Run, read_runs
from everstep.report.shell import html

FORMAT = 1


def write(run_dirs: Sequence[storage.PathLike] | storage.PathLike, output: storage.PathLike | None = None) -> Path:
    """Writes the report of one run, or of several side by side; whole or not at all.

    Args:
      run_dirs: Run directories. The first is what the others are compared with.
      output: The file; by default `reports/report.html` in the run, and `reports/comparison.html` in the first of
        several.

    Returns:
      The file.

    Raises:
      UsageError: One is no run, or has nothing to show yet; or the file cannot be written.
    """
    directories = _listed(run_dirs)
    runs = read_runs(directories)
    path = Path(output) if output is not None else _default_path(directories)
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory: name a file, as {str(path / 'report.html')!r}")
    text = html(_title(runs), _data(runs))
    storage.prepare_directory(path.parent)
    storage.write_bytes(path, text.encode("utf-8", errors="replace"))
    return path


def _listed(run_dirs: Sequence[storage.PathLike] | storage.PathLike) -> list[Path]:
    given = [run_dirs] if isinstance(run_dirs, str | os.PathLike) else list(run_dirs)
    if not given:
        raise UsageError("a report is about at least one run: name its directory")
    return [Path(directory) for directory in given]


def _default_path(directories: Sequence[Path]) -> Path:
    return directories[0] / "reports" / ("report.html" if len(directories) == 1 else "comparison.html")


def _title(runs: Sequence[Run]) -> str:
    return " · ".join(run.name for run in runs)


def _data(runs: Sequence[Run]) -> dict[str, object]:
    """Returns what the page is given; comparing comes first, because it adds columns to the tables."""
    comparisons = [found for number, run in enumerate(runs[1:], start=1) for found in compare(runs[0], run, number)]
    configs = [run.config for run in runs]
    return {
        "format": FORMAT,
        "runs": [run.as_data() for run in runs],
        "comparisons": comparisons,
        "configuration": differences(configs),
        "incomparable": incomparable(configs),
    }
