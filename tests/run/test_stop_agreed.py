"""A stop that is requested while several processes agree whether to stop."""

from pathlib import Path

import pytest

from everstep.engine.config import RuntimeConfig
from everstep.gang import Gang
from everstep.run import attempt
from everstep.run.parent_process import SUPERVISOR, announced


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


class HookElsewhere(Gang):
    """Of two processes the first one; a hook of the other has requested a stop."""

    def gather(self, name, value):
        return [value, "hook:it is 07:00"]


def test_a_hook_of_another_process_has_stopped_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUPERVISOR, str(tmp_path / "announced.json"))
    guard = attempt.Guard(tmp_path, RuntimeConfig(), is_kept=False)
    monkeypatch.setattr(attempt, "current_gang", HookElsewhere)
    assert guard.stop_agreed().reason == "it is 07:00"
    assert guard._signals.as_text() == "hook:it is 07:00"
    assert announced(tmp_path / "announced.json").stop_reason == "it is 07:00"
