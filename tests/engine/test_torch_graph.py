"""Recorded steps on PyTorch: the whole contract of an engine, the same bits as eagerly, and what runs eagerly instead.

There is no GPU here, so `OperationList` takes the place of CUDA graphs; the rest is the code that runs on a GPU.
"""

import copy
import itertools

import keras
import pytest

pytestmark = pytest.mark.backend

if keras.backend.backend() != "torch":
    pytest.skip("only PyTorch has recorded steps", allow_module_level=True)

import torch  # noqa: E402
from tests.engine.operation_list import recording_engine  # noqa: E402

import everstep as es  # noqa: E402
from everstep.data.iterables import IterableStream  # noqa: E402
from everstep.engine.backend import create_engine  # noqa: E402
from everstep.testing import engines, models  # noqa: E402
from everstep.testing.engines.running import check_same_bits_for_every_split  # noqa: E402
from everstep.testing.tasks import Regression, Scripted, running, seeded  # noqa: E402


@pytest.mark.parametrize("check", engines.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_engine(check):
    check(recording_engine)


@pytest.mark.parametrize("kind", models.MODELS)
def test_same_bits_for_every_split(kind):
    check_same_bits_for_every_split(recording_engine, kind)


@pytest.mark.parametrize("kind", models.MODELS)
def test_same_bits_as_eagerly(kind):
    digests, logs = set(), []
    for make in (create_engine, recording_engine):
        model = seeded(models.MODELS[kind])
        with running(make, Regression(), model, long_calls=True) as rig:
            assert rig.engine.is_eager == (make is create_engine), rig.engine.describe()
            rig.run(7, 5)
            logs.append([rig.engine.read("train"), rig.evaluate(models.samples(model, 10))])
            rig.run(3)
            digests.add(rig.digest())
    assert len(digests) == 1
    assert logs[0] == logs[1]


# -- what runs eagerly ------------------------------------------------------------------------------------------------


def reads_the_loss(task, inputs, model, optimizer, metrics):
    logs = Regression.train_step(task, inputs, model, optimizer, metrics)
    task.best = min(task.best, logs["loss"].item())
    return logs


def counts_in_python(task, inputs, model, optimizer, metrics):
    task.calls += 1
    return Regression.train_step(task, inputs, model, optimizer, metrics)


def keeps_a_list(task, inputs, model, optimizer, metrics):
    task.seen.append(1)
    return Regression.train_step(task, inputs, model, optimizer, metrics)


def takes_a_number_from_python(task, inputs, model, optimizer, metrics):
    logs = Regression.train_step(task, inputs, model, optimizer, metrics)
    return logs | {"number": keras.ops.convert_to_tensor(next(task.numbers))}


def assigns_under_a_condition(task, inputs, model, optimizer, metrics):
    logs = Regression.train_step(task, inputs, model, optimizer, metrics)
    es.cond(logs["loss"] < 1.0, lambda: task.good.assign(task.good + 1.0), lambda: task.good.assign(task.good))
    return logs


@pytest.mark.parametrize(
    ("step", "attributes", "reason"),
    [
        (reads_the_loss, {"best": 9.0}, "needs a value on the host: Tensor.item in "),
        (counts_in_python, {"calls": 0}, "changes the attribute 'calls' of Scripted"),
        (keeps_a_list, {"seen": []}, "changes the attribute 'seen' of Scripted"),
        (takes_a_number_from_python, {"numbers": itertools.count(0.5)}, "takes from Python differs from step to step"),
        (assigns_under_a_condition, {"good": 0.0}, "assigns variables under a condition"),
    ],
)
def test_runs_eagerly(step, attributes, reason, caplog):
    ended = []
    for make in (recording_engine, create_engine):
        given = {
            name: keras.Variable(value) if name == "good" else copy.copy(value) for name, value in attributes.items()
        }
        task = Scripted(step, **given)
        with running(make, task, seeded(models.mlp), long_calls=True) as rig:
            if make is recording_engine:
                described = rig.engine.describe()
                assert described["loop"] == "eager"
                assert reason in described["reason"]
                assert caplog.text.count("run eagerly, with the same results") == 1
            rig.run(5)
            ended.append((getattr(task, "calls", 0), rig.engine.weights()["dense/kernel"].tobytes()))
    assert ended[0] == ended[1]  # also the number of calls: those that were rehearsed are not counted


def test_conditions_without_assignments_are_recorded():
    def step(task, inputs, model, optimizer, metrics):
        logs = Regression.train_step(task, inputs, model, optimizer, metrics)
        loss = logs["loss"]
        return logs | {"sign": keras.ops.cond(loss < task.limit, lambda: loss * 0.0 + 1.0, lambda: loss * 0.0 - 1.0)}

    signs = []
    for make in (create_engine, recording_engine):
        task = Scripted(step, limit=1.0)
        with running(make, task, seeded(models.plain_mlp), long_calls=True) as rig:
            assert rig.engine.is_eager == (make is create_engine)
            for _ in range(3):
                rig.engine.reset("train")
                rig.run(9)
                signs.append(rig.engine.read("train")["sign"])
    assert signs[:3] == signs[3:]


def test_can_be_turned_off():
    engine = recording_engine(Regression(), seeded(models.mlp), keras.optimizers.Adam(), cuda_graph=False)
    engine.build(models.samples(engine.model, 4))
    assert engine.describe() == {"device": "cpu", "loop": "eager", "xla": False, "replicas": 1}


# -- what happens between two replays ---------------------------------------------------------------------------------


def test_random_numbers_after_an_assigned_seed():
    """Seeds are known on the host; those that are assigned between two runs are read again."""
    digests = set()
    for make in (create_engine, recording_engine):
        with running(make, Regression(), seeded(models.mlp), long_calls=True) as rig:
            rig.run(3)
            seeds = [v for v in rig.engine.variables.values() if v.name == "seed_generator_state"]
            assert seeds
            for seed in seeds:
                seed.assign([2**31 - 2, 7])
            rig.run(4)
            with rig.engine.model_view() as model:
                model(models.samples(model, 4)[0], training=True)
            rig.run(2)
            digests.add(rig.digest())
    assert len(digests) == 1


def test_replaced_variables_are_recorded_again():
    digests = set()
    for make in (create_engine, recording_engine):
        with running(make, Regression(), seeded(models.mlp), long_calls=True) as rig:
            rig.run(3)
            for variable in rig.engine.variables.values():
                variable._value.data = variable._value.data.clone()
            rig.run(3)
            rig.engine.reset("train")
            rig.run(2)
            digests.add((rig.digest(), tuple(rig.engine.read("train").items())))
    assert len(digests) == 1


def test_many_shapes(caplog):
    """Batches of more shapes than are recorded run eagerly, with the same bits."""
    digests = set()
    for make in (create_engine, recording_engine):
        model = seeded(models.mlp)
        x, y = models.samples(model, 200)
        batches = [(x[:size], y[:size]) for size in (*range(4, 16), 4, 15)]
        with running(make, Regression(), model, data=IterableStream(lambda batches=batches: batches)) as rig:
            rig.run(len(batches))
            digests.add(rig.digest())
    assert len(digests) == 1
    assert rig.engine.compilations == 8
    assert caplog.text.count("more than 8 shapes") == 1


def test_logs_as_of_the_call():
    """`read_later` returns the logs of the steps before it, also after later ones."""
    with running(recording_engine, Regression(), seeded(models.mlp), long_calls=True) as rig:
        rig.run(3)
        logs, later, bad = rig.engine.read("train"), rig.engine.read_later("train"), rig.engine.read_bad_step_later()
        rig.run(3)
        assert later() == logs != rig.engine.read("train")
        assert bad() is None


def test_a_models_own_step():
    """A step with `loss.backward()` is recorded, too."""

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            self.zero_grad()
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            loss.backward()
            trainable = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([weight.value.grad for weight in trainable], trainable)
            return {"loss": loss.detach()}

    digests = set()
    for make in (create_engine, recording_engine):
        model = seeded(lambda: Own([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)]))
        model.compile("adam", "mse")
        data = models.samples(models.mlp(), 40)
        with running(make, es.CompiledTask(model), model, model.optimizer, (data[0], data[0][:, :3])) as rig:
            assert rig.engine.is_eager == (make is create_engine), rig.engine.describe()
            rig.run(9)
            digests.add(rig.digest())
    assert len(digests) == 1
