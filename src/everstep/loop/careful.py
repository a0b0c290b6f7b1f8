"""Steps one by one, each looked at before the next: how training passes what had spoiled it."""

from collections.abc import Callable, Mapping

from everstep.engine.engine import Engine
from everstep.engine.feed import Feed
from everstep.loop.recovery import Recovery


class CarefulSteps:
    """Trains single steps; a batch that makes the loss or the state bad is left out, and its step undone.

    Attributes:
      until: The step up to which care is taken.

    Args:
      recovery: Judges them.
      until: The step.
    """

    def __init__(self, recovery: Recovery, until: int) -> None:
        self._recovery, self.until = recovery, until
        self._left_out = 0

    def run(
        self,
        engine: Engine,
        feed: Feed,
        n: int,
        begin: int,
        logs: Callable[[], Mapping[str, float]],
        after: Callable[[int], bool],
    ) -> int:
        """Trains up to `n` good steps, no further than `until`.

        Args:
          engine: Runs the steps; another one in each stage of a run that grows.
          feed: Where batches come from.
          n: How many steps.
          begin: Steps done before.
          logs: Reads the open window.
          after: Called after each step with the steps done; False ends it.

        Returns:
          The steps done; fewer than asked for if the data ended or care is no longer needed.
        """
        done = 0
        while done < n and begin + done < self.until:
            before, position = engine.state(), feed.state()
            if not engine.run(feed, 1):
                break
            step = begin + done + 1
            reason = self._recovery.judge(step, logs()) or self._recovery.judge_state(step, engine.state())
            if reason:
                engine.load(before)
                self._recovery.leave_out(step, position, reason, further=self._left_out > 0)
                self._left_out += 1
                continue
            done += 1
            if not after(step):
                break
        return done
