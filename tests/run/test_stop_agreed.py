"""A stop that is requested while several processes agree whether to stop."""

from pathlib import Path

import pytest

from everstep.engine.config import RuntimeConfig
from everstep.gang import Gang
from everstep.run import attempt


class Interrupting(Gang):
    """Of two processes the first one; it receives a signal after it has said that there is none."""

    def __init__(self, signals):
        self._signals = signals

    def gather(self, name, value):
        self._signals.request("SIGTERM")
        return [value, None]


def test_what_is_requested_meanwhile_counts_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has heard of nothing, and continues: this one may not stop alone."""
    guard = attempt.Guard(tmp_path, RuntimeConfig(), is_kept=False)
    gang = Interrupting(guard._signals)
    monkeypatch.setattr(attempt, "current_gang", lambda: gang)
    assert guard.stop_agreed() is None
    assert guard.stop_agreed().reason == "SIGTERM"
