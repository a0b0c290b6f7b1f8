"""Assertions on the fields of an error, where its text is not what matters.

with raises_problem(key="trainer.epochs", received=0):
    trainer_config(epochs=0)
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.errors import NOTHING, Problem, TrainingError, UsageError


@contextlib.contextmanager
def raises_problem(
    kind: type[UsageError] | type[TrainingError] = UsageError,
    *,
    key: str | None = None,
    received: Any = NOTHING,
    reason: str = "",
    remedy: str = "",
    origin: str | None = None,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Checks that the block raises an error of which one problem has all of these fields.

    Args:
      kind: The type of the error.
      key: What the user would change.
      received: The value that was received.
      reason: A regular expression that is found in the reason: a word that tells it from others.
      remedy: A regular expression that is found in the remedy.
      origin: Where the value came from.
    """
    with pytest.raises(kind) as error:
        yield error

    def fits(problem: Problem) -> bool:
        return (
            (key is None or problem.key == key)
            and (received is NOTHING or (type(problem.received) is type(received) and problem.received == received))
            and re.search(reason, problem.fill(problem.reason)) is not None
            and re.search(remedy, problem.fill(problem.remedy)) is not None
            and (origin is None or problem.origin == origin)
        )

    assert any(map(fits, error.value.problems)), f"no problem has these fields: {error.value.problems}"
