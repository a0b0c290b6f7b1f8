"""A trial that may be pruned: it waits for the sweep's worker after an evaluation, but not for ever."""

import logging
import threading
import types

import pytest

from everstep.run import pruning


@pytest.fixture
def gate(monkeypatch):
    """Returns a gate for a worker's socket, at which an evaluation is due."""
    monkeypatch.setattr(pruning, "_PATIENCE_SECONDS", 0.2)

    def create(path):
        found = pruning.PruningGate(path, lambda: None)
        found.controller = types.SimpleNamespace(tracker=types.SimpleNamespace(flush=lambda: None))
        found.on_evaluation_end(10, {})
        return found

    return create


def test_a_worker_that_does_not_answer_is_logged(gate, caplog):
    with pruning.listen_to_trials() as listener, caplog.at_level(logging.WARNING):
        gate(listener.path).on_window_begin(10)
    assert caplog.messages == ["step 10: the sweep's worker did not answer within 0.2 s; the trial goes on, not pruned"]


def test_a_worker_that_is_dead_is_logged(gate, caplog):
    with pruning.listen_to_trials() as listener:
        waiting = gate(listener.path)
    waiting.on_window_begin(10)
    assert "did not answer (No such file or directory)" in caplog.text


def test_a_worker_that_answers_is_not(gate, caplog, monkeypatch):
    with pruning.listen_to_trials() as listener:
        monkeypatch.setattr(pruning, "_PATIENCE_SECONDS", 60.0)
        thread = threading.Thread(target=gate(listener.path).on_window_begin, args=(10,))
        thread.start()
        with listener.waiting_trial(60):
            assert thread.is_alive()
        thread.join()
    assert not caplog.messages
