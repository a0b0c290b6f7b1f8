"""Objects with `train` and `evaluate` alone, and loops over a step of one's own, under a controller."""

import contextlib

import keras
import numpy as np
import pytest
from tests.loop.samples import Counter, MemoryCheckpointer, SavedCounter

import everstep
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import UsageError
from everstep.model_garden import (
    Controller,
    StandardEvaluator,
    StandardEvaluatorOptions,
    StandardTrainer,
    StandardTrainerOptions,
)
from everstep.task.grad import value_and_grad
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker

pytestmark = pytest.mark.backend

X = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4)
Y = X.sum(axis=1, keepdims=True)


class Fitter:
    """A loop as people write it who have none: a model, an optimizer, `train` and `evaluate`."""

    def __init__(self, bias=True):
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=bias)])
        self.adam = keras.optimizers.Adam(0.05)
        self.adam.build(self.model.trainable_variables)
        self.loss = keras.metrics.Mean(name="loss")

    def train(self, num_steps):
        self.loss.reset_state()
        for _ in range(num_steps):
            loss, grads = value_and_grad(self._loss, self.model.trainable_variables)
            self.adam.apply(grads, self.model.trainable_variables)
            self.loss.update_state(loss)
        return {"loss": self.loss.result(), "own": {"rate": self.adam.learning_rate}}

    def evaluate(self, num_steps):
        return {"validation_loss": keras.ops.stop_gradient(self._loss())}

    def _loss(self):
        return keras.ops.mean(keras.ops.square(keras.ops.subtract(self.model(X), Y)))

    def weights(self):
        return [keras.ops.convert_to_numpy(v) for v in [*self.model.variables, *self.adam.variables]]


def controller(fitter, folder, **kwargs):
    return Controller(
        trainer=fitter,
        evaluator=fitter,
        global_step=fitter.adam.iterations,
        steps_per_loop=2,
        checkpoint_manager=OrbaxCheckpointer(folder),
        checkpoint_interval=2,
        **kwargs,
    )


def test_a_plain_object_is_saved_and_resumes_with_the_same_bits(tmp_path):
    whole, first = Fitter(), Fitter()
    logs = controller(whole, tmp_path / "whole").train(6)
    assert {"loss", "own/rate", "steps_per_second"} <= set(logs)
    controller(first, tmp_path / "parts").train(4)
    second = Fitter()
    resumed = controller(second, tmp_path / "parts")
    assert (resumed.restore_checkpoint(), resumed.step) == (4, 4)
    resumed.train_and_evaluate(6)
    for one, other in zip(whole.weights(), second.weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed.last_evaluation["validation_loss"] == pytest.approx(float(whole.evaluate(-1)["validation_loss"]))


def test_train_and_evaluate_are_all_that_an_object_needs():
    trainer = Counter()
    assert everstep.Controller(trainer=trainer, evaluator=trainer, steps_per_loop=5).train_and_evaluate(10) == {
        "validation_loss": 10.0,
        "eval_seconds": pytest.approx(0, abs=1),
    }
    assert trainer.events == ["train 5", "train 5", "evaluate 10"]


class Stateful:
    """Has a state of its own; knows nothing of the loop otherwise."""

    def __init__(self):
        self.global_step, self.total = 0, np.zeros(2)

    def train(self, num_steps):
        self.global_step, self.total = self.global_step + num_steps, self.total + num_steps
        return {"loss": 1.0, "own": {"total": self.total[0]}}

    def state(self, into=None):
        return {"total": self.total}, {"step": self.global_step}

    def restore(self, state, meta):
        self.global_step, self.total = meta["step"], state["total"]


def test_an_object_may_say_itself_what_its_state_is():
    checkpointer = MemoryCheckpointer()
    logs = Controller(trainer=Stateful(), checkpointer=checkpointer, steps_per_loop=2).train(4)
    assert (logs["own/total"], list(checkpointer.restore()[0])) == (4, ["total"])
    again = Stateful()
    assert Controller(trainer=again, checkpointer=checkpointer).restore_checkpoint() == again.global_step == 4
    assert again.total.tolist() == [4, 4]


def test_a_plain_evaluator_beside_a_trainer_that_can_be_saved():
    class Looker:
        def evaluate(self, num_steps):
            return {"score": {"first": 3}}

    logs = Controller(trainer=SavedCounter(), evaluator=Looker(), steps_per_loop=5).train_and_evaluate(5)
    assert logs["score/first"] == 3


def test_a_window_that_was_trained_before_a_stop_is_logged_by_the_next_attempt(tmp_path):
    class Stopped(SystemExit):
        pass

    whole, tracker = Fitter(), MemoryTracker()
    controller(whole, tmp_path / "whole", tracker=tracker).train(4)
    expected = [point.logs["loss"] for point in tracker.points]
    stopping, rows, acted = [True], MemoryTracker(), []
    for _ in range(2):
        fitter = Fitter()
        made = controller(
            fitter,
            tmp_path / "parts",
            tracker=rows,
            train_actions=[lambda logs: acted.append(logs["loss"])],
            stop_requested=lambda fitter=fitter: (
                Stopped(143) if stopping[0] and int(fitter.adam.iterations.value) == 4 else None
            ),
        )
        made.restore_checkpoint()
        with pytest.raises(Stopped) if stopping[0] else contextlib.nullcontext():
            made.train(4)
        made.checkpointer.close()
        stopping[0] = False
    assert [point.step for point in rows.points] == [2, 4]
    assert [point.logs["loss"] for point in rows.points] == acted == expected


def test_an_evaluator_alone_takes_what_it_holds(tmp_path):
    trained = Fitter()
    controller(trained, tmp_path).train(2)

    class Looker:
        def __init__(self):
            self.model, self.global_step = Fitter().model, 0

        def evaluate(self, num_steps):
            return {"first": self.model(X)[0, 0]}

    looker = Looker()
    watching = Controller(evaluator=looker, checkpointer=OrbaxCheckpointer(tmp_path, repair=False))
    assert watching.restore_checkpoint() == 2
    assert watching.evaluate()["first"] == pytest.approx(float(keras.ops.convert_to_numpy(trained.model(X))[0, 0]))


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path):
    controller(Fitter(), tmp_path).train(2)
    other = Fitter(bias=False)
    before = other.weights()
    with raises_problem(key="Fitter", reason="only in the checkpoint: .*held.model/dense/bias"):
        controller(other, tmp_path).restore_checkpoint()
    assert all((a == b).all() for a, b in zip(before, other.weights(), strict=True))


def test_the_step_of_an_object_may_be_a_number(tmp_path):
    checkpointer = MemoryCheckpointer()
    Controller(trainer=Counter(), checkpointer=checkpointer, steps_per_loop=5).train(5)
    again = Counter()
    assert Controller(trainer=again, checkpointer=checkpointer).restore_checkpoint() == 5
    assert again.global_step == 5


def test_tensorflow_variables_of_an_object_are_saved_too():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("they are TensorFlow's")
    import tensorflow as tf

    class Adder:
        def __init__(self):
            self.global_step, self.total = tf.Variable(0, dtype=tf.int64), tf.Variable([0.0, 0.0])

        def train(self, num_steps):
            self.global_step.assign_add(num_steps)
            self.total.assign_add([1.0, 2.0])

    checkpointer = MemoryCheckpointer()
    Controller(trainer=Adder(), checkpointer=checkpointer, steps_per_loop=1).train(3)
    again = Adder()
    assert Controller(trainer=again, checkpointer=checkpointer).restore_checkpoint() == 3
    assert (int(again.global_step), again.total.numpy().tolist()) == (3, [3.0, 6.0])


def test_arguments_of_orbits_controller(tmp_path):
    fitter = Fitter()
    made = controller(
        fitter,
        tmp_path / "checkpoints",
        enable_async_checkpointing=False,
        summary_dir=tmp_path / "summaries",
        eval_summary_dir=tmp_path / "evaluations",
        summary_manager=None,
    )
    made.train_and_evaluate(2, eval_interval=2)
    made.tracker.close()
    for folder in ("summaries", "evaluations"):
        assert len(list((tmp_path / folder).glob("*tfevents*"))) == 1


def test_a_strategy_is_the_one_that_plain_objects_run_in():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("strategies are TensorFlow's")
    import tensorflow as tf

    class Placed(Counter):
        def train(self, num_steps):
            self.strategy = tf.distribute.get_strategy()
            return super().train(num_steps)

    placed, strategy = Placed(), tf.distribute.OneDeviceStrategy("/cpu:0")
    Controller(trainer=placed, strategy=strategy, steps_per_loop=1).train(1)
    assert placed.strategy is strategy
    assert not tf.distribute.has_strategy()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"checkpoint_manager": "there"}, "checkpoint_manager"),
        ({"summary_manager": object()}, "summary_manager"),
        ({"checkpoint_manager": MemoryCheckpointer(), "checkpointer": MemoryCheckpointer()}, "checkpoint_manager"),
        ({"trainer": None}, "Controller()"),
        ({"trainer": SavedCounter(), "global_step": 3}, "global_step"),
    ],
)
def test_arguments_that_are_refused(arguments, key):
    with pytest.raises(UsageError) as error:
        Controller(**{"trainer": Counter(), **arguments})
    assert error.value.key == key


def test_an_unknown_argument():
    with pytest.raises(TypeError, match="unexpected keyword argument 'chekpointer'"):
        Controller(trainer=Counter(), chekpointer=None)


def test_an_object_without_a_step_is_refused():
    class Nothing:
        def train(self, num_steps):
            return {}

    with raises_problem(key="Nothing", reason="does not count its steps", remedy="global_step=optimizer.iterations"):
        Controller(trainer=Nothing())


# -- orbit's standard loops --------------------------------------------------------------------------------------------


class Batches:
    def __init__(self, times):
        self.times = times

    def __iter__(self):
        return iter([(X[:4], Y[:4]), (X[4:], Y[4:])] * self.times)


def batches(times=1):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat(times)
    return Batches(times)


class Standard(StandardTrainer, StandardEvaluator):
    """Both in one object, as orbit's users write it."""

    def __init__(self, train, evaluation, options=None, eval_options=None):
        StandardTrainer.__init__(self, train, options)
        StandardEvaluator.__init__(self, evaluation, eval_options)
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.sgd = keras.optimizers.SGD(0.1)
        self.sgd.build(self.model.trainable_variables)
        self.loss = keras.metrics.Mean(name="loss")
        self.begun = 0

    def train_loop_begin(self):
        self.begun += 1
        self.loss.reset_state()

    def train_step(self, iterator):
        x, y = next(iterator)
        loss, grads = value_and_grad(lambda: self._loss(x, y), self.model.trainable_variables)
        self.sgd.apply(grads, self.model.trainable_variables)
        self.loss.update_state(loss)

    def train_loop_end(self):
        return {"loss": self.loss.result()}

    def eval_begin(self):
        return []

    def eval_step(self, iterator):
        x, y = next(iterator)
        return keras.ops.stop_gradient(self._loss(x, y))

    def eval_reduce(self, state=None, step_outputs=None):
        return [*state, float(keras.ops.convert_to_numpy(step_outputs))]

    def eval_end(self, losses):
        return {"validation_loss": np.mean(losses), "batches": len(losses)}

    def _loss(self, x, y):
        return keras.ops.mean(keras.ops.square(keras.ops.subtract(self.model(x), y)))


@pytest.mark.parametrize("loop", [True, False])
def test_standard_loops_train_and_evaluate(loop):
    both = Standard(batches(50), batches(), StandardTrainerOptions(use_tf_function=loop, use_tf_while_loop=loop))
    made = Controller(trainer=both, evaluator=both, global_step=both.sgd.iterations, steps_per_loop=10)
    logs = made.train_and_evaluate(30, eval_interval=10)
    assert (both.begun, made.step, logs["batches"]) == (3, 30, 2)
    assert logs["validation_loss"] < 0.1
    assert both.evaluate(1)["batches"] == 1


def test_other_data_starts_at_its_beginning_and_evaluation_may_go_on():
    both = Standard(
        batches(50), batches(), eval_options=StandardEvaluatorOptions(recreate_iterator_for_each_eval=False)
    )
    both.train(1)
    both.train_dataset = batches(50)
    both.train(1)
    first, second = both.evaluate(1), both.evaluate(1)
    assert first["validation_loss"] != second["validation_loss"]
    both.eval_dataset = batches()
    assert both.evaluate(1)["validation_loss"] == first["validation_loss"]
    with raises_problem(key="eval_dataset", reason="ended after 1 of 3 batches"):
        both.evaluate(3)


@pytest.mark.parametrize(
    ("kind", "options", "key"),
    [
        (StandardTrainer, StandardTrainerOptions(use_tf_function=False), "use_tf_while_loop"),
        (StandardTrainer, StandardTrainerOptions(use_tpu_summary_optimization=True), "use_tpu_summary_optimization"),
        (StandardEvaluator, StandardEvaluatorOptions(use_tf_while_loop=True), "use_tf_while_loop"),
    ],
)
def test_options_that_are_refused(kind, options, key):
    trainer_class = type("Own", (kind,), {"train_step": None, "eval_step": None})
    with raises_problem(key=key, received=True):
        trainer_class([], options)


def test_the_path_that_orbits_users_have_imported_from():
    from everstep.loop import standard

    assert standard.StandardTrainer is StandardTrainer
    assert everstep.Controller is Controller
