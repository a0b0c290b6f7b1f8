"""What the terminal display shows of a run beside its logs; asked for ten times a second, so nothing is read for it."""

import time
from typing import Any

from everstep.loop.saver import Saver
from everstep.run.goodput import goodput
from everstep.run.record import Run
from everstep.tracking.console import Facts


class LiveFacts:
    """Tells how a run stands.

    Args:
      run: The run.
      trainer: What trains it.
      saver: What saves it.
    """

    def __init__(self, run: Run, trainer: Any, saver: Saver) -> None:
        self._run, self._trainer, self._saver = run, trainer, saver

    def __call__(self, step: int) -> Facts:
        """Returns what is known when `step` steps are done."""
        attempts = self._run.record["attempts"]
        return Facts(
            epoch=self._trainer.epochs_done,
            phase=self._phase(attempts),
            saves=not self._saver.is_off,
            checkpoint=self._checkpoint(),
            attempts=max(1, len(attempts)),
            goodput=self._goodput(attempts, step),
        )

    def _phase(self, attempts: list[dict[str, Any]]) -> str:
        if self._trainer.evaluating:
            return "evaluating"
        return "starting" if attempts and attempts[-1]["first_step"] is None else ""

    def _checkpoint(self) -> tuple[int, float | None] | None:
        """Returns the newest step on disk, and since when, if this attempt has saved it."""
        if self._run.newest_save is not None:
            step, when = self._run.newest_save
            return step, time.monotonic() - when
        return (self._saver.step, None) if self._saver.step else None

    def _goodput(self, attempts: list[dict[str, Any]], step: int) -> float | None:
        if not attempts:
            return None
        now = [*attempts[:-1], {**attempts[-1], "to_step": step}]
        return goodput({"step": step, "attempts": now}).ratio
