"""The stages of something that is tried: each is told when it is over, with its time, or with what failed."""

import contextlib
import time
from collections.abc import Callable, Iterator

from everstep.errors import TrainingError, UsageError


class Stages:
    """Tells of stages, one line each, as they end; one lasts until the next begins.

        stages = Stages(print)
        with stages.followed():
            stages.begin("train")
            …                        # train       ok            1.2 s

    Args:
      say: Called with each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._name, self._began = "", 0.0

    def begin(self, name: str) -> None:
        """Ends the stage that is under way, and begins another."""
        self.end()
        self._name, self._began = name, time.perf_counter()

    def end(self, result: str = "ok", note: str = "") -> None:
        """Ends the stage that is under way, if there is one, with a note of what came of it."""
        if self._name:
            seconds = time.perf_counter() - self._began
            self._say(f"{self._name:<10}  {result:<8}  {seconds:>6.1f} s  {note}".rstrip())
        self._name = ""

    def left_out(self, name: str, reason: str) -> None:
        """Tells of a stage that is not gone through, and why; whatever is under way has ended."""
        self.end()
        self._say(f"{name:<10}  {'left out':<8}            {reason}")

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Ends the last stage with the block, and says in errors which stage they are from."""
        try:
            yield
        except BaseException as error:
            failed = self._name
            self.end("failed" if isinstance(error, Exception) else "ended")
            if not isinstance(error, UsageError | TrainingError):
                raise
            kind = UsageError if isinstance(error, UsageError) else TrainingError
            raise kind(f"{failed} failed: {error}") from error
        self.end()
