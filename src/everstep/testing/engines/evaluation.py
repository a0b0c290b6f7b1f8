"""Evaluation: every sample counts once, outputs reach the host, and training is not affected."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from everstep.data import ArrayStream, nest
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, opened, running, seeded
from everstep.types import Logs


class Gathering(Regression):
    """Gathers the outputs of every validation step on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.states: list[Any] = []

    def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
        outputs = self.inference_step(inputs[0], model)
        return {"outputs": outputs, "labels": inputs[1]}

    def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
        self.states.append(state)
        self.seen.append(step_outputs)
        return len(self.seen)

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Logs:
        return {"steps": aggregated_logs}


def check_counts_every_sample_once(make: Make) -> None:
    """Loss and metrics over a set with a short last batch are those of all its samples, however it is cut."""
    model = seeded(models.linear)
    x, y = models.samples(model, 480)
    error = x[:43] @ np.full((4, 1), 0.5, "float32") - y[:43]
    with running(make, Regression(), model, data=(x, y), long_calls=True) as rig:
        for batch_size in (4, 43, 1):
            logs = rig.evaluate((x[:43], y[:43]), batch_size)
            assert set(logs) == {"loss", "mae"}
            np.testing.assert_allclose(logs["loss"], np.mean(error**2), rtol=1e-5)
            np.testing.assert_allclose(logs["mae"], np.mean(np.abs(error)), rtol=1e-5)
        few = rig.evaluate((x[:43], y[:43]), 4, n=3)
        np.testing.assert_allclose(few["loss"], np.mean(error[:12] ** 2), rtol=1e-5)


def check_leaves_training_as_it_was(make: Make) -> None:
    """An evaluation in the middle of a window changes no bit of the state, nor of later steps."""
    ended = []
    for evaluates in (False, True):
        with running(make, Regression(), seeded(models.cnn)) as rig:
            rig.run(2)
            if evaluates:
                before = rig.digest()
                assert rig.evaluate(models.samples(rig.engine.model, 10)) != rig.engine.read("train")
                assert rig.digest() == before
            rig.run(2)
            ended.append((rig.digest(), rig.engine.read("train")))
    assert ended[0] == ended[1]


def check_leaves_compiled_metrics_as_they_were(make: Make) -> None:
    """A compiled model has one set of metrics: evaluation uses it and restores its state."""

    def build() -> keras.Model:
        model = models.plain_mlp()
        model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
        return model

    model = seeded(build)
    with running(make, Regression(), model, model.optimizer) as rig:
        rig.run(3)
        before, logs = rig.digest(), rig.engine.read("train")
        first = rig.evaluate(models.samples(model, 10, seed=5))
        assert rig.evaluate(models.samples(model, 10, seed=5)) == first
        assert set(first) == {"loss", "mae", "mse"}
        assert (rig.digest(), rig.engine.read("train")) == (before, logs)


def check_gathers_outputs_on_the_host(make: Make) -> None:
    """`aggregate_logs` gets each step's outputs as 1-tuples of arrays, and the first time None."""
    task, model = Gathering(), seeded(models.linear)
    x, y = models.samples(model, 480)
    with running(make, task, model, data=(x, y), long_calls=True) as rig:
        rig.run(2)
        for _ in range(2):
            task.seen.clear()
            logs = rig.evaluate((x[:43], y[:43]), 4)
            assert logs["steps"] == 11 == len(task.seen)
            assert all(isinstance(v, tuple) and len(v) == 1 for step in task.seen for v in step.values())
            assert all(isinstance(v[0], np.ndarray) for step in task.seen for v in step.values())
            assert all(type(v[0].numpy()) is np.ndarray for step in task.seen for v in step.values())
            np.testing.assert_array_equal(np.concatenate([step["labels"][0] for step in task.seen]), y[:43])
            expected = x[:43] @ rig.value("model/dense/kernel")
            np.testing.assert_allclose(
                np.concatenate([step["outputs"][0] for step in task.seen]), expected, rtol=1e-4, atol=1e-6
            )
    assert task.states[:3] == [None, 1, 2]
    assert task.states[11] is None


class Point(NamedTuple):
    """Two coordinates."""

    x: Any
    y: Any


class Nesting(Gathering):
    """Its outputs are nested as those of a detector are: pairs, dicts of levels, lists of tuples."""

    def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
        x, y = inputs
        outputs = self.inference_step(x, model)
        return {
            "loss": self.build_losses(y, outputs),
            "pair": (y, outputs),
            "levels": {"4": {"boxes": x[:, :2], "anchors": (x[:, 2:],)}, "3": [outputs, (y, {2: x, 1: y})]},
            "inner": {"mean": ops.mean(y), "none": None, "number": 3, "empty": {}},
            "point": Point(ops.ones((2, 3), "int32"), [True]),
        }

    def expected(self, x: np.ndarray, y: np.ndarray, outputs: np.ndarray) -> Any:
        """Returns the same as arrays, for a batch; but for the loss."""
        return {
            "pair": (y, outputs),
            "levels": {"4": {"boxes": x[:, :2], "anchors": (x[:, 2:],)}, "3": [outputs, (y, {2: x, 1: y})]},
            "inner": {"mean": np.mean(y), "none": None, "number": np.array(3), "empty": {}},
            "point": Point(np.ones((2, 3), "int32"), [np.array(True)]),
        }


def check_gathers_nested_outputs(make: Make) -> None:
    """Outputs keep their nesting, the order of keys included; only scalars in dicts are logged."""
    task, model = Nesting(), seeded(models.linear)
    x, y = models.samples(model, 480)
    with running(make, task, model, data=(x, y), long_calls=True) as rig:
        rig.run(2)
        logs = rig.evaluate((x[:10], y[:10]), 4)
        assert set(logs) == {"loss", "mae", "mean", "number", "steps"}
        assert logs["number"] == 3
        weights = rig.value("model/dense/kernel")
        for index, seen in enumerate(task.seen):
            rows = slice(4 * index, min(4 * index + 4, 10))
            expected = task.expected(x[rows], y[rows], x[rows] @ weights)
            assert len(seen.pop("loss")) == 1
            one_each = nest.map_leaves(lambda leaf: (leaf,), expected)
            assert repr(nest.structure(seen)) == repr(nest.structure(one_each))
            for (path, leaf), (_, wanted) in zip(nest.walk(seen), nest.walk(one_each), strict=True):
                assert type(leaf.numpy()) is np.ndarray
                assert leaf.dtype == (wanted.dtype if wanted.dtype != np.int64 else np.int32), path
                np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-6, err_msg=path)


def check_logs_what_was_reduced(make: Make) -> None:
    """Numbers of any kind, also nested; a loss beside that of the steps; values that are not numbers are left out."""

    class Reducing(Regression):
        results: Any = None

        def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
            return (state or 0.0) + step_outputs["loss"][0].numpy()

        def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Any:
            return self.results

    task, model = Reducing(), seeded(models.linear)
    x, y = models.samples(model, 8)
    with running(make, task, model, data=(x, y)) as rig, opened(rig.engine, ArrayStream((x, y), 4)) as feed:
        plain, _ = rig.engine.evaluate(feed, loss_name="validation_loss")
        assert list(plain) == ["validation_loss", "mae"]
        own = {"loss": np.float32(3.0), "tensor": ops.convert_to_tensor([4.0]), "inner": {"count": 2}, "mae": 5}
        task.results = {**own, "matrix": np.eye(2), "text": "good", "lists": {"empty": []}}
        for _ in range(2):
            feed.restore({"epoch": 0, "batch": 0})
            logs, _ = rig.engine.evaluate(feed, loss_name="validation_loss")
            assert logs.pop("validation_loss") == plain["validation_loss"]
            assert logs == {"loss": 3.0, "tensor": 4.0, "inner": {"count": 2.0}, "mae": 5.0, "lists": {}}


def check_needs_no_loss(make: Make) -> None:
    """A validation step may return nothing, or further scalars, averaged over samples."""

    class Quiet(Regression):
        def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
            self.process_metrics(metrics, inputs[1], model(inputs[0]))

    class Talking(Quiet):
        def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
            return {"target": ops.mean(inputs[1]), "raw": inputs[1]}

    model = seeded(models.linear)
    x, y = models.samples(model, 10)
    with running(make, Quiet(), model) as rig:
        assert set(rig.evaluate((x, y))) == {"mae"}
    with running(make, Talking(), model) as rig:
        np.testing.assert_allclose(rig.evaluate((x, y))["target"], y.mean(), rtol=1e-4)


def check_evaluates_alone(make: Make) -> None:
    """Without training data and optimizer an engine evaluates; the model is built on the validation batch."""
    data = models.samples(models.plain_mlp(), 10)
    engine = make(Regression(), seeded(models.LateModel), None)
    engine.build(None, (data[0][:4], data[1][:4]))
    for _ in range(2):
        with opened(engine, ArrayStream(data, 4)) as feed:
            logs, batches = engine.evaluate(feed)
        assert set(logs) == {"loss", "mae"}
        assert batches == 3
    assert not [key for key in engine.state() if not key.startswith("model/")]


CHECKS = [
    check_counts_every_sample_once,
    check_leaves_training_as_it_was,
    check_leaves_compiled_metrics_as_they_were,
    check_gathers_outputs_on_the_host,
    check_gathers_nested_outputs,
    check_logs_what_was_reduced,
    check_needs_no_loss,
    check_evaluates_alone,
]
