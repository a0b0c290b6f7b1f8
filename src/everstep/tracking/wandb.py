"""Weights & Biases, behind a spool."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from everstep import storage
from everstep.tracking.histogram import histogram
from everstep.tracking.sender import Delivery, Pace
from everstep.tracking.spool import Record
from everstep.tracking.spooled import SpooledTracker, Status
from everstep.tracking.wandb_run import WandbRun, spool_of
from everstep.tracking.wandb_target import WandbTarget

_SECONDS_TO_COMPLETE_A_FILE = 60.0


class WandbTracker(SpooledTracker):
    """Records a run on W&B: one run there over all attempts, each point once; or in files for later.

    Without an account the run is kept in files, which is said: `everstep runs sync DIR` sends it later.

    Example:
      tracker = WandbTracker("runs/a", target, params=config.as_dict(), tags={"backend": "jax"})
      tracker.start(0)
      tracker.log(100, {"loss": 0.3}, "train")
      tracker.close()

    Args:
      model_dir: The run directory.
      target: The run on W&B.
      params: The configuration, nested, without secrets; a later attempt's values replace earlier ones.
      tags: What else to know about the run and the attempt.
      close_seconds: How long `close` waits for the rest to be sent.
      pace: How long the thread waits between two deliveries.
    """

    service = "W&B"

    def __init__(
        self,
        model_dir: storage.PathLike,
        target: WandbTarget,
        *,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        close_seconds: float = 10.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(model_dir, spool_of(model_dir), (), close_seconds, pace)
        self._target = target
        self._params = _leaves({**(params or {}), "everstep": dict(tags or {})})
        self._tags = [str(value)[:64] for name, value in (tags or {}).items() if name in ("experiment", "backend")]
        self._run: WandbRun | None = None

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Appends the counts to the spool."""
        made = {name: histogram(array) for name, array in values.items()}
        counted = {name: {"counts": one.counts, "edges": one.edges} for name, one in made.items() if one}
        self._spool.histograms(step, counted)
        self._wake()

    def close(self) -> None:
        """Waits a few seconds for the rest to be sent, says what is left, and ends W&B's processes."""
        super().close()
        if self._run is not None:
            self._run.end()

    def _prepare(self) -> None:
        """W&B's package is imported by a process of its own."""

    def _target_record(self) -> Record:
        return self._target.record()

    def _describe_run(self) -> None:
        if changed := self._spool.params(self._params):
            self._spool.append({"type": "params", "values": {name: self._params[name] for name in changed}})
        if self._tags:
            self._spool.append({"type": "tags", "values": self._tags})

    def _connected(self) -> Delivery:
        self._run = WandbRun(self._target, self._directory, self._spool, self._close_seconds)
        return Delivery(self._spool, self._run.progress, self._run)

    def _label(self) -> str:
        return "W&B"

    def _patience(self, status: Status) -> float:
        """A file is complete in a moment, once the process has started: a run that finished waits for it."""
        patient = status == "finished" and self._target.mode == "offline"
        return _SECONDS_TO_COMPLETE_A_FILE if patient else self._close_seconds


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested mappings, as JSON can spell them, under their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _leaves(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, bool | int | str | None) else _spelled(value)
    return flat


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and np.isfinite(value):
        return value
    return [_spelled(one) for one in value] if isinstance(value, list | tuple) else str(value)
