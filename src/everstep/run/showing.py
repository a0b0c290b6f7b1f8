"""What trackers are shown beside numbers: samples at evaluations, histograms of the weights at loops' ends."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.data import nest
from everstep.data.special import first_samples
from everstep.engine.looking import looking, weights
from everstep.evaluation.arrays import host_array
from everstep.evaluation.display import picture
from everstep.loop import random_state
from everstep.task.task import unpack
from everstep.tracking.config import TrackingConfig
from everstep.tracking.tracker import Kind, Tracker

logger = logging.getLogger(__name__)


class ShowingTracker(Tracker):
    """Another tracker, which is also shown what the configuration asks for.

    It is called by the thread that trains, when the state is that of the step which is logged. Nothing it does leaves
    a trace in the training; where something fails, that is said once, and not tried again.

    Args:
      tracker: Takes everything.
      trainer: Has the model, and the first batch of the validation data.
      config: How many samples, and how often histograms.
    """

    def __init__(self, tracker: Tracker, trainer: Any, config: TrackingConfig) -> None:
        self._tracker, self._trainer = tracker, trainer
        self._num_samples, self._interval = config.samples, config.histogram_interval

    def start(self, step: int) -> None:
        """Starts it."""
        self._tracker.start(step)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Hands the numbers on, and what is to be shown with them."""
        self._tracker.log(step, logs, kind)
        if kind == "validation" and self._num_samples:
            self._num_samples = self._num_samples if _works("samples", lambda: self._show(step)) else 0
        if kind == "train" and self._interval and step % self._interval == 0:
            self._interval = self._interval if _works("histograms", lambda: self._count(step)) else 0

    def flush(self) -> None:
        """Flushes it."""
        self._tracker.flush()

    def close(self) -> None:
        """Closes it."""
        self._tracker.close()

    def _show(self, step: int) -> None:
        for name, value in self._shown().items():
            kind, shown, captions = sorted_out(name, value, self._num_samples)
            if kind == "images":
                self._tracker.log_images(step, name, shown, captions)
            else:
                self._tracker.log_text(step, name, shown)

    def _shown(self) -> Mapping[str, Any]:
        """Returns what the task shows of its first validation samples, with the weights that are evaluated."""
        trainer, task = self._trainer, self._trainer.task
        inputs = nest.map_leaves(host_array, first_samples(trainer.example, self._num_samples))
        drawn = random_state.get()
        try:
            with trainer.undisturbed(), trainer.averaged(), looking(trainer.engine) as model:
                outputs = task.inference_step(unpack(inputs)[0], model)
                return dict(task.show(inputs, nest.map_leaves(host_array, outputs)) or {})
        finally:
            random_state.set(drawn)

    def _count(self, step: int) -> None:
        self._tracker.log_histograms(step, weights(self._trainer.engine))


def _works(what: str, call: Callable[[], None]) -> bool:
    try:
        call()
    except Exception:
        logger.exception("%s cannot be shown, and are not tried again; training goes on", what)
        return False
    return True


def sorted_out(name: str, value: Any, most: int) -> tuple[str, list[Any], Sequence[str]]:
    """Returns whether `Task.show` gave images or text under a name, and them, at most so many.

    Raises:
      TypeError: It is neither.
    """
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return "text", [value] if isinstance(value, str) else value[:most], ()
    images, captions = value if isinstance(value, tuple) and len(value) == 2 else (value, ())
    pictures: list[Any] = [None]
    with contextlib.suppress(TypeError, ValueError):
        pictures = [picture(host_array(image)) for image in images[:most]]
    if any(one is None for one in pictures) or not all(isinstance(caption, str) for caption in captions):
        raise TypeError(
            f"show returned for {name!r} neither texts nor images: expected a list of str, an array (n, h, w) or "
            "(n, h, w, channels), or such an array and a list of captions"
        )
    return "images", pictures, [*captions, *[""] * len(pictures)][: len(pictures)]
