"""Data on the device: the same bits, logs and positions as from the host, and types that stay."""

from typing import Any

import keras
import numpy as np

from everstep.data import ArrayStream
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, Scripted, running, seeded


def check_same_bits_from_the_device(make: Make, kind: str) -> None:
    """Shuffled epochs with a short last batch give the same bits and positions, however they are split into calls."""
    model = seeded(models.MODELS[kind])
    x, y = models.samples(model, 4 * 9 + 3)
    ended = set()
    for on_device in (False, True):
        stream = ArrayStream((x, y), 4, shuffle=True, seed=3, repeat=True)
        model = seeded(models.MODELS[kind])
        with running(make, Regression(), model, data=stream, long_calls=True, on_device=on_device) as rig:
            start, samples = rig.engine.state(), 0
            for split in ((25,), (3, 1, 15, 6)):
                rig.engine.load(start)
                rig.feed.restore({"epoch": 0, "batch": 0})
                rig.run(*split)
                ended.add((rig.digest(), str(rig.feed.state()), str(rig.engine.read("train"))))
                samples += 4 * 23 + 3 * 2
                assert rig.feed.samples == samples
    assert len(ended) == 1


def check_resumes_between_host_and_device(make: Make) -> None:
    """State and position of a run on one of them lead to the same bits on the other."""
    for on_device in (False, True):
        stream = [_shuffled() for _ in range(2)]
        with running(make, Regression(), seeded(models.mlp), data=stream[0], on_device=on_device) as first:
            first.run(13)
            state, position = first.engine.state(), first.feed.state()
            first.run(12)
            logs = first.engine.read("train")
        with running(make, Regression(), seeded(models.mlp, 7), data=stream[1], on_device=not on_device) as second:
            second.engine.load(state)
            second.feed.restore(position)
            second.run(12)
            assert second.engine.read("train") == logs
            assert second.digest() == first.digest()
            assert second.feed.state() == first.feed.state()


def check_evaluates_on_the_device(make: Make) -> None:
    """An evaluation gives the same logs, with a short last batch, in part, and repeated."""
    model = seeded(models.mlp)
    data = models.samples(model, 4 * 25 + 1)
    with running(make, Regression(), model, long_calls=True) as rig:
        for n in (-1, 7):
            logs = rig.evaluate(data, n=n)
            assert rig.evaluate(data, n=n, on_device=True) == logs
            assert rig.evaluate(data, n=n, on_device=True) == logs


class _Gathering(Regression):
    """Returns the outputs of every batch to the host."""

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        """Returns the loss and the outputs."""
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "features": inputs[0]}

    def aggregate_logs(self, state: Any = None, step_outputs: Any = None) -> Any:
        """Collects the features."""
        return [*(state or []), step_outputs["features"]]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> dict[str, float]:
        """Returns a number that depends on the order."""
        rows = np.concatenate([np.concatenate(parts) for parts in aggregated_logs])
        return {"weighted": float((rows * np.arange(len(rows))[:, None]).sum())}


def check_aggregates_outputs_on_the_device(make: Make) -> None:
    """A task that gathers the outputs of each batch gets the same ones, in the same order."""
    model = seeded(models.plain_mlp)
    data = models.samples(model, 18)
    with running(make, _Gathering(), model) as rig:
        assert rig.evaluate(data, on_device=True) == rig.evaluate(data)


def check_types_stay_on_the_device(make: Make) -> None:
    """Bytes are bytes on the device and in the step; integers are integers, and weights are float32."""
    seen = set()

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        x, y, weight = inputs["x"], inputs["y"], inputs["weight"]
        seen.add(tuple(keras.backend.standardize_dtype(part.dtype) for part in (x, y, weight)))
        return Regression.train_step(task, (keras.ops.cast(x, "float32") / 255, y, weight), model, optimizer, metrics)

    def pixels() -> ArrayStream:
        random = np.random.default_rng(0)
        x, y = random.integers(0, 256, (30, 6)).astype(np.uint8), random.integers(0, 9, (30, 1)).astype(np.int32)
        return ArrayStream({"x": x, "y": y, "weight": random.random(30)}, 4, shuffle=True, seed=1, repeat=True)

    class Pixels(Scripted):
        def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
            x = keras.ops.cast(inputs["x"], "float32") / 255
            return super().validation_step((x, inputs["y"], inputs["weight"]), model, metrics)

    digests = set()
    for on_device in (False, True):
        model = seeded(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
        with running(make, Pixels(step), model, data=pixels(), long_calls=True, on_device=on_device) as rig:
            rig.run(20)
            digests.add(rig.digest())
    assert seen == {("uint8", "int32", "float32")}
    assert len(digests) == 1


def check_stops_and_continues_on_the_device(make: Make) -> None:
    """A run that stops between two calls, or is moved to another position, continues with the right batch."""
    digests = set()
    for stops in (True, False):
        stream = _shuffled()
        with running(make, Regression(), seeded(models.mlp), data=stream, long_calls=True, on_device=True) as rig:
            if stops:
                done = next(done for done in rig.engine.calls(rig.feed, 40) if done >= 5)
                state, position = rig.engine.state(), rig.feed.state()
                rig.run(7)
                rig.engine.load(state)
                rig.feed.restore(position)
                rig.run(40 - done)
            else:
                rig.run(40)
            digests.add((rig.digest(), str(rig.feed.state())))
    assert len(digests) == 1


def _shuffled() -> ArrayStream:
    return ArrayStream(models.samples(seeded(models.mlp), 64), 4, shuffle=True, seed=1, repeat=True)


CHECKS = [
    check_resumes_between_host_and_device,
    check_evaluates_on_the_device,
    check_aggregates_outputs_on_the_device,
    check_types_stay_on_the_device,
    check_stops_and_continues_on_the_device,
]
