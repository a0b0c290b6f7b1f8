"""Log records and warnings without secrets; fast enough, and from any thread."""

import io
import logging
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from everstep import redaction


@pytest.fixture
def logged() -> Any:
    """A logger with the filter on its handler; returns both and what was written."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(redaction.LogFilter())
    logger = logging.getLogger("redaction.test")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, out
    logger.removeHandler(handler)
    logger.propagate = True


def test_log_records_are_redacted(logged: Any) -> None:
    logger, out = logged
    redaction.learn({"password": "hunter2-correct"})
    logger.warning("%s has %s", "ada", "hunter2-correct")
    try:
        raise ValueError("bad hunter2-correct")
    except ValueError:
        logger.exception("failed with %(password)s", {"password": "hunter2-correct"}, stack_info=True)
    text = out.getvalue()
    assert "ada has ***\n" in text
    assert "ValueError: bad ***" in text
    assert "failed with ***" in text
    assert "hunter2" not in text.replace('"hunter2-correct"', "")  # the lines of this file, in the traceback
    assert "Traceback" in text


def test_arguments_that_do_not_fit_are_hidden_too(logged: Any) -> None:
    logger, out = logged
    redaction.learn({"password": "hunter2-correct"})
    logger.warning("has %s and %s", "hunter2-correct")
    assert out.getvalue() == "has %s and %s ('***',)\n"


def test_a_record_without_secrets_is_left_alone() -> None:
    record = logging.makeLogRecord({"msg": "%s of %d", "args": ("step", 3)})
    try:
        raise ValueError("plain")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    before = dict(record.__dict__)
    assert redaction.LogFilter().filter(record)
    assert record.__dict__ == before


def test_a_whole_process_can_be_guarded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    made = logging.getLogRecordFactory()
    try:
        redaction.guard_process()
        guarded = logging.getLogRecordFactory()
        redaction.guard_process()
        assert logging.getLogRecordFactory() is guarded
        redaction.learn({"password": "hunter2-correct"})
        logging.getLogger("anybody").warning("has %s", "hunter2-correct")
        assert caplog.messages == ["has ***"]
        shown = warnings.formatwarning(UserWarning("has hunter2-correct"), UserWarning, "f.py", 1, "")
        assert shown == "f.py:1: UserWarning: has ***\n"
    finally:
        logging.setLogRecordFactory(made)


def test_learning_while_others_log() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        try:
            for count in range(40):
                secret = f"secret-{number}-{count:04d}"
                redaction.learn({"password": secret})
                failures.extend([secret] if secret in redaction.text(f"a {secret} b") else [])
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def cpu_seconds(work: Callable[[], object]) -> float:
    """Returns the processor time that a call takes in this thread, whatever else the machine does."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def test_redacting_is_cheap() -> None:
    """Compared with a plain loop of about a millisecond, so that a slow machine passes too."""
    loop = min(cpu_seconds(lambda: sum(range(50_000))) for _ in range(9))
    redaction.learn({f"p{n}": {"password": f"hunter-{n}-correct"} for n in range(30)})
    line = "train | step:  1200 | steps/sec:  812.3 | loss: 0.31415 | accuracy: 0.9"
    redaction.text(line)
    assert cpu_seconds(lambda: [redaction.text(line) for _ in range(100)]) / 100 < 2 * loop
    hostile = "a-" * 20_000 + "://" + "b:" * 5_000 + "sk-" * 5_000 + "x=" * 5_000 + " " * 5_000
    assert cpu_seconds(lambda: redaction.text(hostile)) < 5_000 * loop
