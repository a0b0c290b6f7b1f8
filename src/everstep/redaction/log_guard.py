"""Log records and warnings without secrets."""

import logging
import warnings
from typing import Any

from everstep.redaction.hiding import text

_formatter = logging.Formatter()


class LogFilter(logging.Filter):
    """Takes secrets out of a record's message, exception and stack; one without any is left as it is.

    Put it on a handler: a logger's filters do not see the records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place; lets every record pass."""
        message = _message(record)
        if (hidden := text(message)) != message:
            record.msg, record.args = hidden, None
        if record.exc_info and not record.exc_text:
            formatted = _formatter.formatException(record.exc_info)
            if (hidden := text(formatted)) != formatted:
                record.exc_info, record.exc_text = None, hidden  # handlers may format it anew
        record.exc_text = record.exc_text and text(record.exc_text)
        record.stack_info = record.stack_info and text(record.stack_info)
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit: logging reports them when it writes, and shows them
        return f"{record.msg} {record.args}"


def guard_process() -> None:
    """From now on all log records and warnings of this process are free of secrets, in every handler."""
    if not isinstance(logging.getLogRecordFactory(), _Factory):
        logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))
        warnings.formatwarning = _Warnings(warnings.formatwarning)


class _Factory:
    def __init__(self, make: Any) -> None:
        self._make = make
        self._filter = LogFilter()

    def __call__(self, *arguments: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*arguments, **named)
        self._filter.filter(record)
        return record


class _Warnings:
    def __init__(self, spell: Any) -> None:
        self._spell = spell

    def __call__(self, *arguments: Any, **named: Any) -> str:
        return text(self._spell(*arguments, **named))
