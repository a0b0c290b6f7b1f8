"""How steps run: the same bits in any number of calls, few compilations, and errors that break nothing."""

import math
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from everstep.checkpoint import digest
from everstep.data import ArrayStream, IterableStream
from everstep.engine import LENGTHS
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, running, seeded

SPLITS = {
    "mlp": [(123,), (1, 1, 1, 10, 110), (7, 16, 100), (1,) * 123],
    "cnn": [(23,), (3, 20), (1,) * 23],
    "gru": [(23,), (3, 20), (1,) * 23],
    "transformer": [(23,), (3, 20), (1,) * 23],
}


def check_same_bits_for_every_split(make: Make, kind: str) -> None:
    """The state after some steps, 3 of them in a second epoch, does not depend on how they are split into calls."""
    model, steps = seeded(models.MODELS[kind]), sum(SPLITS[kind][0])
    data = models.samples(model, 4 * (steps - 3))
    with running(make, Regression(), model, data=data, long_calls=True) as rig:
        start, digests = rig.engine.state(), set()
        for split in SPLITS[kind]:
            rig.engine.load(start)
            rig.feed.restore({"epoch": 0, "batch": 0})
            rig.run(*split)
            digests.add(rig.digest())
            assert rig.feed.state() == {"epoch": 1, "batch": 3}
    assert len(digests) == 1
    assert rig.digest() != digest(start)


def check_same_bits_in_another_engine(make: Make) -> None:
    """Built anew from the same seed, with other call lengths, the bits are the same."""
    digests = set()
    for long_calls in (True, False):
        with running(make, Regression(), seeded(models.mlp), long_calls=long_calls) as rig:
            rig.run(20, 13)
            digests.add(rig.digest())
    assert len(digests) == 1


def check_resumes_from_a_state(make: Make) -> None:
    """State and position of one engine, loaded into another in the middle of a window, lead to the same bits."""
    with running(make, Regression(), seeded(models.mlp)) as first:
        first.run(13)
        state, position = first.engine.state(), first.feed.state()
        first.run(12)
        logs = first.engine.read("train")
    with running(make, Regression(), seeded(models.mlp, 7)) as second:
        second.engine.load(state)
        second.feed.restore(position)
        second.run(12)
        assert second.engine.read("train") == logs
        assert second.digest() == first.digest()


def check_remainders_compile_nothing_new(make: Make) -> None:
    """Few lengths are compiled: later windows of any length are made of them.

    The first window is run twice: once it may be single steps, where a GPU finds out by them how to call steps.
    """
    with running(make, Regression(), seeded(models.mlp), long_calls=True) as rig:
        rig.run(111, 111, 9, 37, 3)
        compiled = rig.engine.compilations
        assert compiled <= LENGTHS
        rig.run(99, 1, 64, 120, 11)
        assert rig.engine.compilations == compiled


def check_other_shapes_compile_once(make: Make) -> None:
    """A short last batch runs by itself, and is compiled for once, where steps are compiled at all."""
    model = seeded(models.plain_mlp)
    with running(make, Regression(), model, data=models.samples(model, 10)) as rig:
        rig.run(3, 3)
        compiled = rig.engine.compilations
        rig.run(3, 6, 3)
        assert rig.engine.compilations == compiled
        assert compiled == (0 if rig.engine.describe()["loop"] == "eager" else 2)
        assert rig.feed.state() == {"epoch": 5, "batch": 3}


def check_learns(make: Make) -> None:
    """The loss falls."""
    with running(make, Regression(), seeded(models.plain_mlp)) as rig:
        rig.run(20)
        before = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(100)
        rig.engine.reset("train")
        rig.run(20)
        assert rig.engine.read("train")["loss"] < before / 2


def check_ends_with_the_data(make: Make) -> None:
    """`run` returns how many steps it did when the data ends, and 0 when called again."""
    model = seeded(models.plain_mlp)
    with running(make, Regression(), model, data=ArrayStream(models.samples(model, 20), 4)) as rig:
        assert rig.engine.run(rig.feed, 7) == 5
        assert rig.engine.run(rig.feed, 7) == 0
        assert rig.value("iteration") == 5


def check_stops_on_request(make: Make) -> None:
    """Whoever iterates over the calls can stop the run between two of them; nothing is lost."""
    with running(make, Regression(), seeded(models.plain_mlp), long_calls=True) as rig:
        done = next(done for done in rig.engine.calls(rig.feed, 104) if done >= 5)
        assert done == rig.value("iteration") == rig.feed.state()["batch"]
        rig.run(104 - done)
        ended = rig.digest()
    with running(make, Regression(), seeded(models.plain_mlp)) as straight:
        straight.run(104)
        assert straight.digest() == ended


def check_does_not_wait_for_data_after_a_stop(make: Make) -> None:
    """After a requested stop, `run` returns the steps done as soon as data is missing; later it continues."""
    model = seeded(models.mlp)
    batches, more = _batches(model, 12), threading.Event()

    def source() -> Iterator[Any]:
        yield from batches[:5]
        more.wait()
        yield from batches[5:]

    with running(make, Regression(), model, data=IterableStream(source)) as rig:
        feed = rig.engine.feed(rig.stream, single=True, may_wait=more.is_set)
        assert rig.engine.run(feed, 12) == rig.value("iteration") == feed.state()["batch"] == 5
        more.set()
        assert rig.engine.run(feed, 7) == 7
        feed.close()
        stopped = rig.digest()
    with running(make, Regression(), seeded(models.mlp), data=IterableStream(lambda: batches)) as straight:
        straight.run(12)
        assert straight.digest() == stopped


def check_survives_a_data_error(make: Make) -> None:
    """A stream that fails once leaves the state as it was; running again continues from there."""
    model = seeded(models.mlp)
    batches, failures = _batches(model, 40), [OSError("the disk is away")]

    def source() -> Iterator[Any]:
        for index, batch in enumerate(batches):
            if index == 17 and failures:
                raise failures.pop()
            yield batch

    with running(make, Regression(), model, data=IterableStream(source, repeat=True)) as rig:
        with pytest.raises(OSError, match="the disk is away"):
            rig.run(30)
        done = int(rig.value("iteration"))
        assert 0 <= done <= 17
        assert rig.feed.state() == {"epoch": 0, "batch": done}
        rig.run(30 - done)
        disturbed = rig.digest()
    with running(make, Regression(), seeded(models.mlp), data=IterableStream(lambda: batches)) as straight:
        straight.run(30)
        assert straight.digest() == disturbed


def check_survives_a_step_error(make: Make) -> None:
    """A batch that cannot be computed leaves state and position as after the step before; the run continues."""
    model = seeded(models.mlp)
    good = _batches(model, 12)
    bad = (good[0][0][:, :3], good[0][1])
    stream = IterableStream(lambda: [*good[:5], bad, *good[5:]])
    with running(make, Regression(), model, data=stream) as rig:
        with pytest.raises(ValueError, match="incompatible"):
            rig.run(12)
        assert rig.value("iteration") == 5
        assert rig.feed.state() == {"epoch": 0, "batch": 5}
        rig.feed.restore({"epoch": 0, "batch": 6})
        rig.run(7)
        disturbed = rig.digest()
    with running(make, Regression(), seeded(models.mlp), data=IterableStream(lambda: good)) as straight:
        straight.run(12)
        assert straight.digest() == disturbed


def check_nan_is_visible(make: Make) -> None:
    """A loss that is NaN shows in the logs, and the NaN weights in the state."""
    model = seeded(models.linear)
    x, y = models.samples(model, 16)
    y[5] = np.nan
    with running(make, Regression(), model, data=(x, y)) as rig:
        rig.run(4)
        logs = rig.engine.read("train")
        assert math.isnan(logs["loss"])
        assert math.isnan(logs["mae"])
        assert np.isnan(rig.value("model/dense/kernel")).all()


def _batches(model: keras.Model, count: int) -> list[Any]:
    return list(ArrayStream(models.samples(model, 4 * count), 4))


CHECKS = [
    check_same_bits_in_another_engine,
    check_resumes_from_a_state,
    check_remainders_compile_nothing_new,
    check_other_shapes_compile_once,
    check_learns,
    check_ends_with_the_data,
    check_stops_on_request,
    check_does_not_wait_for_data_after_a_stop,
    check_survives_a_data_error,
    check_survives_a_step_error,
    check_nan_is_visible,
]
