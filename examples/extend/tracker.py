"""A tracker: the numbers of a run as tab-separated lines, `step kind name value`."""

import os

from everstep.tracking import Tracker, plain


class TsvTracker(Tracker):
    """Appends a line for each number.

    Args:
      run: The run; the tracker writes into `run.directory`.
      file: The file's name, from the configuration.
    """

    def __init__(self, run, file="points.tsv"):
        self._path = run.directory / file
        self._waiting = ""

    def start(self, step):
        """Drops the lines beyond the step restored: they will be logged again."""
        if self._path.exists():
            lines = self._path.read_text().splitlines(keepends=True)
            kept = self._path.with_suffix(".kept")
            kept.write_text(
                "".join(line for line in lines if int(line.split("\t")[0]) <= step)
            )
            os.replace(kept, self._path)

    def log(self, step, logs, kind):
        """Keeps the lines until `flush`, which is called before each checkpoint."""
        for name, value in plain(logs).items():
            self._waiting += f"{step}\t{kind}\t{name}\t{value}\n"

    def flush(self):
        """Writes what was logged. If the disk is full, lines wait for the next call."""
        if self._waiting:
            with open(self._path, "a") as file:
                file.write(self._waiting)
            self._waiting = ""

    def close(self):
        """Writes the rest, however the run ends."""
        self.flush()
