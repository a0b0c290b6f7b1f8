"""What saving costs: 500 MB of state, a checkpoint every 25 seconds of training.

One dense layer and its momentum are the state; a step multiplies and updates all of it, on every core there is.
Intervals with a save and without take turns in one process, through the controller, with every check that a real save
has. The bar: the median interval with a save takes at most 5 % longer than the one without beside it. An idle machine
is needed to measure that.
"""

import dataclasses
import math
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np

from everstep import ExperimentConfig, Trainer
from everstep.checkpoint import OrbaxCheckpointer, Retention
from everstep.engine import backend
from everstep.loop import Controller
from everstep.testing.tasks import Regression

BAR, SMALL_BAR = 0.05, 0.20
BATCH = 32


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two intervals beside each other; times in seconds.

    Attributes:
      without: Wall time of the one without a save.
      saving: Wall time of the one with a save.
      blocked: The part of it before training continued.
      work: CPU time that it took more than the other.
    """

    without: float
    saving: float
    blocked: float
    work: float

    @property
    def added(self) -> float:
        """By what part the save made its interval longer."""
        return self.saving / self.without - 1


@dataclasses.dataclass(frozen=True)
class Figures:
    """All pairs of intervals."""

    size: int
    bar: float
    pairs: list[Pair]

    @property
    def added(self) -> float:
        """The median of what the saves added."""
        return statistics.median(pair.added for pair in self.pairs)

    def passed(self) -> bool:
        """Returns whether the bar was met."""
        return self.added <= self.bar

    def line(self) -> str:
        """Returns the figures on one line."""
        median = {
            field.name: statistics.median(getattr(pair, field.name) for pair in self.pairs)
            for field in dataclasses.fields(Pair)
        }
        each = " ".join(f"{pair.added:+.1%}" for pair in self.pairs)
        return (
            f"{keras.backend.backend()}: {self.size / 1e6:.0f} MB every {median['without']:.1f} s of training | with a "
            f"save {median['saving']:.1f} s: {self.added:+.1%} ({each}), bar {self.bar:.0%} | training waits "
            f"{median['blocked']:.2f} s, {median['work']:.1f} s of CPU | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, size: int, seconds: float, pairs: int, bar: float = BAR) -> Figures:
    """Trains in intervals of about so many seconds, with and without a save in turn."""
    trainer = build(size)
    checkpointer = OrbaxCheckpointer(folder / "checkpoints", Retention(2), run="cost")
    controller = Controller(trainer=trainer, steps_per_loop=10, checkpointer=checkpointer)
    try:
        steps = _steps_for(controller, seconds)
        measured = [_pair(controller, steps, swapped=bool(number % 2)) for number in range(pairs)]
    finally:
        checkpointer.close()
        trainer.close()
    state = sum(array.nbytes for array in trainer.engine.state().values())
    return Figures(state, bar, measured)


def build(size: int) -> Trainer:
    """Returns a trainer with about so many bytes of state: weights and their momentum."""
    backend.prepare(0)
    units = math.isqrt(size // 8)
    model = keras.Sequential([keras.Input((units,)), keras.layers.Dense(units, use_bias=False), keras.layers.Dense(1)])
    x = np.random.default_rng(0).normal(size=(4 * BATCH, units)).astype("float32")
    params = ExperimentConfig()
    params.override({"task": {"train_data": {"global_batch_size": BATCH}}})
    optimizer = keras.optimizers.SGD(1e-6, momentum=0.9)
    return Trainer(params, Regression(), model, optimizer, evaluate=False, train_dataset=(x, x[:, :1]))


def _steps_for(controller: Controller, seconds: float) -> int:
    """Trains until everything is compiled and has been saved once; returns how many steps take that long."""
    _interval(controller, 20)
    controller.save_checkpoint()
    _interval(controller, 10)
    return max(1, round(10 * seconds / _interval(controller, 10)))


def _pair(controller: Controller, steps: int, swapped: bool) -> Pair:
    """Measures an interval of each kind; which comes first is swapped each time."""
    measured = {
        saving: _measured(controller, steps, saving) for saving in ((True, False) if swapped else (False, True))
    }
    (without, _, idle_work), (saving, blocked, work) = measured[False], measured[True]
    pair = Pair(without, saving, blocked, work - idle_work)
    print(f"without {without:.2f} s, with a save {saving:.2f} s: {pair.added:+.1%}", file=sys.stderr, flush=True)
    return pair


def _measured(controller: Controller, steps: int, saving: bool) -> tuple[float, float, float]:
    """Returns wall time, the part of it that training waited for the save, and CPU time of an interval."""
    begin, work = time.perf_counter(), time.process_time()
    if saving:
        controller.save_checkpoint()
    blocked = time.perf_counter() - begin
    _interval(controller, steps)
    controller.checkpointer.wait()
    return time.perf_counter() - begin, blocked, time.process_time() - work


def _interval(controller: Controller, steps: int) -> float:
    begin = time.perf_counter()
    controller.train(controller.step + steps, checkpoint_at_completion=False)
    return time.perf_counter() - begin
