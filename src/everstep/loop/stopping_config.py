"""When training ends before its time because it no longer gets better."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

from everstep.config import Config, ConfigError, Problem


@dataclasses.dataclass
class EarlyStoppingConfig(Config):
    """Ends training once so many evaluations in a row have brought nothing; off as long as `metric` is empty."""

    metric: str = ""
    """The evaluation metric that has to get better, such as `validation_loss`; `a|b` for one inside another."""
    mode: Literal["higher", "lower"] | None = None
    """Whether a higher or a lower value is better; to be said where `metric` is."""
    patience: int = 3
    """After so many evaluations in a row without a better value, training ends."""
    min_delta: float = 0.0
    """By how much a value has to be better than the best so far to count as better."""

    def validate(self) -> None:
        """Checks that what is asked for can be done.

        Raises:
          UsageError: It cannot; names the key.
        """
        super().validate()
        if problems := list(self._problems()):
            raise ConfigError(problems)

    def _problems(self) -> Iterator[Problem]:
        if self.metric and self.mode is None:
            yield Problem("mode", f"received None: say whether a 'higher' or a 'lower' {self.metric} is better")
        if self.patience < 1:
            yield Problem("patience", f"received {self.patience}, must be at least 1")
        if not self.min_delta >= 0:
            yield Problem("min_delta", f"received {self.min_delta}, must be at least 0")
