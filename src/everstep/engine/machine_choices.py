"""What was decided by timing on this machine, for all runs: so another run of the same training ends in the same bits.

XLA chooses kernels by timing them, and `certified.py` decides by the duration of a step how steps are called. The next
time the clock may say something else. So the first decision on a machine is kept, in two files of the user's cache,
`~/.cache/everstep/programs/<device>-<jaxlib>/`:

- `autotuning.pbtxt`: the kernels that XLA has chosen, in its own format;
- `calls.json`: how steps are called, by the digest of their program before it was optimized.

Without them nothing is lost but that: a run keeps its own decisions in its directory (`programs.py`).
"""

import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Callable, Mapping

import filelock

from everstep.checkpoint.remote import cache
from everstep.storage import write_json, write_text

logger = logging.getLogger(__name__)

KERNELS, CALLS = "autotuning.pbtxt", "calls.json"
LARGEST = 32 << 20
"""Bytes of kernels that are kept; what is chosen after that is kept with its run only."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """How the steps of a kind, `train` or `validation`, are called.

    Attributes:
      several: Whether a call may hold several steps.
      autotuned: Whether XLA chooses kernels by timing them; else it is asked for deterministic operations.
      reason: Why they are not autotuned, or why a call does not hold several short steps.
      step_ms: How long a step took when that was decided.
    """

    several: bool
    autotuned: bool
    reason: str = ""
    step_ms: float = 0.0


class MachineChoices:
    """The decisions of this machine, for one kind of device and one version of XLA.

    Args:
      where: The kind of device and the version of XLA, by name.
    """

    def __init__(self, where: Mapping[str, str]) -> None:
        self._directory = cache.root() / "programs" / re.sub(r"[^\w.]+", "-", "-".join(where.values()))

    def kernels(self) -> str:
        """Returns the kernels that XLA has chosen on this machine, in its own format; empty if none are known."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self._directory / KERNELS).read_text("utf-8")
        return ""

    def add_kernels(self, chosen: str) -> None:
        """Adds kernels for operations for which none are known."""

        def add() -> None:
            before = self.kernels()
            joined = joined_choices(before, chosen)
            if joined != before and len(joined) <= LARGEST:
                write_text(self._directory / KERNELS, joined)

        self._alone(add)

    def calls(self, source: str) -> Calls | None:
        """Returns how steps are called whose program has this digest; None if that is not known."""
        known = self._all_calls().get(source)
        with contextlib.suppress(TypeError):
            return None if known is None else Calls(**known)
        return None

    def add_calls(self, source: str, calls: Calls) -> None:
        """Records how steps are called whose program has this digest, unless that is known."""

        def add() -> None:
            known = self._all_calls()
            if source not in known:
                write_json(self._directory / CALLS, {**known, source: dataclasses.asdict(calls)})

        self._alone(add)

    def _all_calls(self) -> dict[str, dict]:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((self._directory / CALLS).read_text("utf-8"))
            return known if isinstance(known, dict) else {}
        return {}

    def _alone(self, add: Callable[[], None]) -> None:
        """Adds something while no other process does; where nothing can be written, that is logged."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(self._directory / ".lock", timeout=10):
                add()
        except (OSError, filelock.Timeout) as error:
            text = "what was chosen for this device cannot be kept in %s (%s): another run may end with other bits"
            logger.info(text, self._directory, error)


def joined_choices(before: str, chosen: str) -> str:
    """Returns XLA's file with the choices of two; of those that differ the earlier ones."""
    head = (chosen or before).split("results {", 1)[0]
    return head + "".join(f"results {{{entry}" for entry in {**_entries(chosen), **_entries(before)}.values())


def _entries(text: str) -> dict[str, str]:
    """Returns the entries of XLA's file by the operation that each is for."""
    parts = [part.rstrip() + "\n" for part in f"\n{text}".split("\nresults {")[1:]]
    return {part.split("\n  result {", 1)[0]: part for part in parts}
