"""A process that saves back to back until it is killed, and the other end of its pipe.

Both ends can compute the state of a step, so that a loaded checkpoint can be checked: whether it is complete, and of
the right step.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everstep import storage
from everstep.checkpoint import OrbaxCheckpointer, Retention

RUN = "saver"
ARRAYS = 10


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a saver does.

    Attributes:
      directory: Where it saves.
      size: Bytes of a state.
      last: The step after which it is done.
      retention: The fields of the rule by which it keeps checkpoints.
    """

    directory: str
    size: int
    last: int
    retention: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"newest": 2})

    def open(self) -> OrbaxCheckpointer:
        """Returns the checkpointer that the saver uses, and that can read what it has saved."""
        return OrbaxCheckpointer(self.directory, Retention(**self.retention), run=RUN)


def state_of(step: int, size: int) -> dict[str, np.ndarray]:
    """Returns the state of a step: no bit pattern of it is that of another step. Arrays are long or short."""
    length = max(1, size // ARRAYS // 4)
    lengths = [max(1, length // 2 if index % 2 else length * 3 // 2) for index in range(ARRAYS)]
    counted = np.arange(max(lengths), dtype="uint32") * np.uint32(2654435761)
    return {f"model/{index}": counted[:n] ^ np.uint32(step * ARRAYS + index) for index, n in enumerate(lengths)}


def is_whole(step: int, size: int, state: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
    """Returns whether this is everything that was saved under `step`, bit by bit."""
    expected = state_of(step, size)
    same = state.keys() == expected.keys() and meta == {"step": step}
    return same and all(np.array_equal(state[key], array) for key, array in expected.items())


def metrics_of(step: int) -> dict[str, float]:
    """Returns the evaluation of a step: it goes up and down, with ties, and now and then it is not a number."""
    return {"score": math.nan if step % 17 == 0 else float(step * 7919 % 101)}


class Saver:
    """A running saver.

    Attributes:
      handed: The last step that it had handed over; the one before it is then committed.
      seconds: When each step was handed over, since the saver was ready.
    """

    def __init__(self, plan: Plan) -> None:
        command = [sys.executable, "-m", "everstep.testing.reliability.saver", json.dumps(dataclasses.asdict(plan))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.handed = 0
        self.seconds: list[float] = []
        self._note(self._process.stdout.readline())  # type: ignore[union-attr]

    def read_until(self, step: int) -> None:
        """Waits until it has handed over `step`."""
        while self.handed < step and (line := self._process.stdout.readline()):  # type: ignore[union-attr]
            self._note(line)

    def kill(self, after: float) -> None:
        """Kills it (SIGKILL) after `after` seconds, and reads what it had printed by then."""
        time.sleep(after)
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Waits for its end; returns how it ended."""
        for line in self._process.stdout:  # type: ignore[union-attr]
            self._note(line)
        self._process.stdout.close()  # type: ignore[union-attr]
        return self._process.wait()

    def _note(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # a line that the kill cut off
            step, seconds = line.split()
            self.handed = int(step)
            self.seconds.append(float(seconds))


def temporaries(directory: Path) -> set[str]:
    """Returns the names of what kills have left of saves, or of removals, that were under way."""
    return {path.name for path in directory.iterdir() if storage.is_temporary(path)}


def _save_until_killed(plan: Plan) -> Iterator[int]:
    """Yields each step as soon as it is handed over."""
    checkpointer = plan.open()
    first = (checkpointer.latest() or 0) + 1
    yield first - 1
    for step in range(first, plan.last + 1):
        checkpointer.save(step, state_of(step, plan.size), {"step": step}, metrics_of(step))
        yield step
    checkpointer.close()


def main() -> None:
    """Carries out the plan on the command line."""
    began = time.monotonic()
    for step in _save_until_killed(Plan(**json.loads(sys.argv[1]))):
        os.write(1, b"%d %.6f\n" % (step, time.monotonic() - began))


if __name__ == "__main__":
    main()
