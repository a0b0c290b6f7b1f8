"""What a run costs: parameters, operations of a step, steps and samples per second, utilisation of the device.

`Throughput` adds the rates to the logs while a run trains. `measure` computes all figures once, when training is done.
Unknown figures are None.

Counting the operations of a step takes about as long as tracing it, or longer, so they are counted only after
`SECONDS_BEFORE_COUNTING` of training, and once: a later attempt takes them from the run's record.
"""

import dataclasses
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from everstep.data import nest
from everstep.engine import device_kind, flops
from everstep.loop import LazyLogs, ProgressiveTrainer, Trainer
from everstep.tracking import LogKind, Tracker, rate_text, value_text
from everstep.types import Batch, Logs

logger = logging.getLogger(__name__)

SECONDS_BEFORE_COUNTING = 10.0
"""The seconds that an attempt has to train before the operations of its steps are counted."""

# A part of the device's name, peak FLOPs in half precision, in float32. The first match counts.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    ("H200 NVL", 835e12, 417e12),
    ("H200", 989e12, 494e12),
    ("GH200", 989e12, 494e12),
    ("H100 PCIe", 756e12, 378e12),
    ("H100 NVL", 835e12, 417e12),
    ("H100", 989e12, 494e12),
    ("A100", 312e12, 156e12),
    ("V100-PCIE", 112e12, 14e12),
    ("V100", 125e12, 15.7e12),
    ("T4", 65e12, 8.1e12),
    ("TPU v4", 275e12, 275e12),
    ("TPU v5 lite", 197e12, 197e12),
    ("TPU v5e", 197e12, 197e12),
    ("TPU v5p", 459e12, 459e12),
    ("TPU v5", 459e12, 459e12),
    ("TPU v6 lite", 918e12, 918e12),
    ("TPU v6e", 918e12, 918e12),
)
_SLICES = ("MIG", "GRID")  # names of slices of a device, whose peak is unknown


def peak_flops(device: str, half_precision: bool) -> float | None:
    """Returns the peak FLOPs of a device, such as `NVIDIA H100 80GB HBM3`; None if it is unknown."""
    if any(_has(device, word) for word in _SLICES):
        return None
    for name, half, single in _PEAKS:
        if _has(device, name):
            return half if half_precision else single
    return None


def _has(device: str, words: str) -> bool:
    """Returns whether a name contains whole words: an A1000 is not an A100."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", device) is not None


@dataclasses.dataclass(frozen=True)
class Cost:
    """The figures of a run; None where one cannot be known.

    Attributes:
      parameters: The number of the model's parameters, without the counters of random generators.
      trainable_parameters: The number of trained ones among them.
      flops_per_train_step: Floating-point operations of one training step, over all devices; None also where training
        was too short to count them.
      flops_per_inference_sample: Those of the model alone, for one sample.
      batch_size: Samples of a training step.
      steps_per_second: The rate of this attempt, without evaluations, saves, and calls that compiled, which are a fixed
        cost.
      samples_per_second: The same in samples.
      device: The name of the device.
      devices: The number of devices that share a step.
      utilisation: The share of the devices' peak that was used.
      stages: The number of stages that this attempt has trained. If there are several, the figures of a step are those
        of the last one, and samples per second and utilisation are unknown.
    """

    parameters: int
    trainable_parameters: int
    flops_per_train_step: float | None = None
    flops_per_inference_sample: float | None = None
    batch_size: int | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    device: str = ""
    devices: int = 1
    utilisation: float | None = None
    stages: int = 1

    def __str__(self) -> str:
        step = f"a step of {self.batch_size} samples" if self.batch_size else "a step"
        step += " of the last stage" if self.stages > 1 else ""
        parts = [
            f"{_short(self.parameters).strip()} parameters",
            f"{_short(self.flops_per_train_step)}FLOPs {step}" if self.flops_per_train_step else "",
            f"{_short(self.flops_per_inference_sample)}FLOPs to infer one" if self.flops_per_inference_sample else "",
            rate_text(self.steps_per_second, "steps/s") if self.steps_per_second else "",
            rate_text(self.samples_per_second, "samples/s") if self.samples_per_second else "",
            f"{self.utilisation:.1%} of the peak of {self.devices} × {self.device}" if self.utilisation else "",
        ]
        return ", ".join(part for part in parts if part)


def measure(record: dict[str, Any], trainer: Trainer, training_time: tuple[int, float]) -> Cost | None:
    """Measures a run that has trained, and adds the figures to its record under `cost`.

    Args:
      record: The record of the run; its last attempt is the one that has just trained.
      trainer: The trainer of this attempt.
      training_time: The steps of this attempt, and the seconds in which they were trained.

    Returns:
      The figures; None if this attempt has trained no step, or they cannot be computed. Then the record keeps its
      figures, or gets the number of parameters.
    """
    try:
        if record["attempts"][-1].get("first_step") is None:
            if not record.get("cost"):  # the attempt that trained was killed: the number of parameters is known
                record["cost"] = dataclasses.asdict(Cost(*count_parameters(trainer.model)))
            return None
        cost = _cost(record, trainer, training_time)
        record["cost"] = dataclasses.asdict(cost)
        return cost
    except Exception as error:  # figures must not fail a run
        logger.debug("cost unknown: %s: %s", type(error).__name__, error)
        return None


def count_parameters(model: keras.Model) -> tuple[int, int]:
    """Returns the number of a model's parameters, and of trained ones, without counters of random generators."""
    trained = sum(_size(variable) for variable in model.trainable_variables)
    others = [v for v in model.non_trainable_variables if v.name != "seed_generator_state"]
    return trained + sum(_size(variable) for variable in others), trained


def _cost(record: Mapping[str, Any], trainer: Trainer, training_time: tuple[int, float]) -> Cost:
    parameters, trained = count_parameters(trainer.model)
    size, stages = samples_per_step(trainer), _stages(record["attempts"][-1], trainer)
    rate = steady_rate(training_time, getattr(trainer, "warmup", (0, 0.0)))
    alike = rate if stages == 1 else None  # all steps were like the last one
    most, device, devices = peak(trainer), device_kind(), int(trainer.engine.describe().get("replicas", 1))
    cost = Cost(
        parameters=parameters,
        trainable_parameters=trained,
        batch_size=size,
        steps_per_second=rate,
        samples_per_second=alike * size if alike and size else None,
        device=device,
        devices=devices,
        stages=stages,
    )
    train_flops, inference_flops = _operations(cost, record.get("cost") or {}, trainer, training_time[1])
    return dataclasses.replace(
        cost,
        flops_per_train_step=train_flops,
        flops_per_inference_sample=inference_flops,
        utilisation=train_flops * alike / most if train_flops and alike and most else None,
    )


def _operations(
    cost: Cost, before: Mapping[str, Any], trainer: Trainer, seconds: float
) -> tuple[float | None, float | None]:
    """Returns the operations of a training step and of an inference, counted or as the record already has them.

    Args:
      cost: The other figures.
      before: The figures that an earlier attempt recorded.
      trainer: The trainer of this attempt.
      seconds: How long this attempt has trained.
    """
    alike = all(
        before.get(name) == getattr(cost, name) for name in ("parameters", "trainable_parameters", "batch_size")
    )
    if alike and before.get("flops_per_train_step"):
        return before["flops_per_train_step"], before.get("flops_per_inference_sample")
    if seconds < SECONDS_BEFORE_COUNTING:
        return None, None
    return flops.of_train_step(trainer.engine, trainer.train_example), _inference_flops(trainer)


def samples_per_step(trainer: Trainer) -> int | None:
    """Returns the number of samples of a training step; a task may define it itself, as a `MultiTask` does."""
    batch = trainer.train_example
    return None if batch is None else getattr(trainer.task, "samples_per_step", _size_of_batch)(batch)


def peak(trainer: Trainer) -> float | None:
    """Returns the peak FLOPs per second of a trainer's devices; None if it is unknown."""
    model, devices = trainer.model, int(trainer.engine.describe().get("replicas", 1))
    half = any(layer.compute_dtype in ("float16", "bfloat16") for layer in (model, *model.layers))
    of_one = peak_flops(device_kind(), half)
    return of_one * devices if of_one else None


def _stages(attempt: Mapping[str, Any], trainer: Trainer) -> int:
    if not isinstance(trainer, ProgressiveTrainer):
        return 1
    return 1 + abs(trainer.stage - trainer.task.stage_at(attempt["from_step"]))


def _inference_flops(trainer: Trainer) -> float | None:
    total = flops.of_inference_step(trainer.engine, trainer.example)
    return None if total is None else total / _size_of_batch(trainer.example_inputs)


def steady_rate(training_time: tuple[int, float], warmup: tuple[int, float]) -> float | None:
    """Returns steps per second without the warmup; None if there were no other steps.

    Args:
      training_time: Steps, and the seconds in which they were trained.
      warmup: The steps and seconds of calls that compiled.
    """
    steps, seconds = training_time[0] - warmup[0], training_time[1] - warmup[1]
    return steps / seconds if steps > 0 and seconds > 0 else None


def _size_of_batch(batch: Batch) -> int:
    return int(nest.flatten(batch)[0].shape[0])


def _size(variable: keras.Variable) -> int:
    size = 1
    for dimension in variable.shape:
        size *= int(dimension)
    return size


def _short(number: float) -> str:
    """Returns a number with three digits and a unit prefix, as `1.32 M`; without a prefix it ends with a space."""
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{value_text(number / power, 3)} {prefix}"
    return f"{value_text(number, 3)} "


class _Mark(NamedTuple):
    """The progress of training at some time."""

    step: int
    samples: int
    waited: float


class Throughput(Tracker):
    """Adds figures to the logs of training windows, on their way to another tracker.

    samples_per_second: Of the actual batches, including the smaller one at an epoch's end.
    data_wait: The share of the time that was spent waiting for the next batch, 0 to 1.
    mfu: Model FLOPs utilisation: the operations of the steps divided by the peak of the devices, if both are known.

    They are computed when the logs are first read, outside the training thread. Only the operations of a step are
    counted in it, once, after the first window that ends later than `SECONDS_BEFORE_COUNTING`, and only on devices
    whose peak is known.

    Args:
      tracker: Where logs go.
      trainer: The trainer whose windows are logged.
    """

    def __init__(self, tracker: Tracker, trainer: Any) -> None:
        self._tracker, self._trainer = tracker, trainer
        self._last = _Mark(0, 0, 0.0)
        self._started = time.monotonic()
        self._share: tuple[Any, float | None] = (
            None,
            None,
        )  # an engine, and what a step a second uses

    def start(self, step: int) -> None:
        """Begins to count, and starts the other tracker."""
        self._last, self._started = _Mark(step, *self._trainer.consumed), time.monotonic()
        self._tracker.start(step)

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Passes the logs on; adds the figures to those of training."""
        self._tracker.log(step, self._with_figures(step, logs) if kind == "train" else logs, kind)

    def flush(self) -> None:
        """Flushes the other tracker."""
        self._tracker.flush()

    def close(self) -> None:
        """Closes the other tracker."""
        self._tracker.close()

    def _with_figures(self, step: int, logs: Mapping[str, float]) -> Mapping[str, float]:
        before, self._last = self._last, _Mark(step, *self._trainer.consumed)
        steps, waited = step - before.step, _gain(before.waited, self._last.waited)
        samples, share = self._samples(steps, before), self._share_of_peak()

        def add_figures(logs: Logs) -> Logs:
            rate = logs.get("steps_per_second")
            if not rate or steps <= 0:
                return logs
            found = {"samples_per_second": samples and rate * samples, "mfu": share and rate * share}
            known = {name: value for name, value in found.items() if value is not None}
            return {**logs, **known, "data_wait": min(1.0, waited * rate / steps)}

        lazy = logs if isinstance(logs, LazyLogs) else LazyLogs(lambda: dict(logs))
        return lazy.then(add_figures)

    def _samples(self, steps: int, before: _Mark) -> float | None:
        """Returns the mean number of samples of the last steps."""
        if hasattr(self._trainer.task, "samples_per_step"):
            return samples_per_step(self._trainer)
        return _gain(before.samples, self._last.samples) / steps if steps > 0 else None

    def _share_of_peak(self) -> float | None:
        engine = self._trainer.engine
        if time.monotonic() - self._started < SECONDS_BEFORE_COUNTING:
            return None
        if self._share[0] is not engine:  # each stage has its own
            most = peak(self._trainer)
            operations = flops.of_train_step(engine, self._trainer.train_example) if most else None
            self._share = engine, operations / most if operations and most else None
        return self._share[1]


def _gain(before: float, now: float) -> float:
    """Returns how much a count has grown; if it was reset meanwhile, the count."""
    return now - before if now >= before else now
