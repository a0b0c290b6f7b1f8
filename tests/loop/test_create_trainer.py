"""A trainer made by hand is the one that `run_experiment` makes."""

import keras
import numpy as np
import pytest

from everstep.experiment import create_trainer
from everstep.loop.progressive import ProgressivePolicy, ProgressiveTrainer
from everstep.loop.trainer import Trainer
from everstep.task.optim.loss_scale import FixedLossScaleOptimizer
from everstep.task.task import Task
from everstep.testing import models
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, run, tiny_params, weights

pytestmark = pytest.mark.backend


class Staged(ProgressivePolicy, TinyTask):
    def num_stages(self):
        return 2

    def num_steps(self, stage):
        return 8

    def get_model(self, stage, old_model=None):
        return self.build_model()


def compiling_task():
    """Returns a task whose model is compiled where it is built: Keras then scales its loss in float16 by itself."""

    class Compiled(Task):
        def build_model(self):
            model = models.mlp()
            model.compile("sgd", "mse")
            return model

        def build_inputs(self, params, input_context=None):
            return TinyTask().build_inputs(params)

    return Compiled()


def params(**runtime):
    made = tiny_params()
    made.override({"runtime": runtime})
    return made


def test_it_computes_in_the_configured_type(tmp_path):
    before = keras.config.dtype_policy()
    given = params(mixed_precision_dtype="bfloat16")
    trainer = create_trainer(given, TinyTask(), train=True, evaluate=True)
    assert {layer.compute_dtype for layer in trainer.model.layers} == {"bfloat16"}
    assert keras.config.dtype_policy() == before
    model, _ = run("train", tmp_path / "run", params=given, trainer=trainer, task=trainer.task)
    assert model.layers[0].compute_dtype == "bfloat16"


def test_a_task_in_stages_takes_a_trainer_that_knows_stages():
    class Mine(ProgressiveTrainer):
        pass

    class Other(Trainer):
        pass

    for given, made in ((Mine, Mine), (Trainer, ProgressiveTrainer)):
        assert type(create_trainer(params(), Staged(), train=True, evaluate=False, trainer_cls=given)) is made
    with raises_problem(key="trainer_cls", received="Other", remedy="derive it from ProgressiveTrainer"):
        create_trainer(params(), Staged(), train=True, evaluate=False, trainer_cls=Other)


@pytest.mark.parametrize(
    ("scale", "cls"),
    [(8.0, FixedLossScaleOptimizer), (None, keras.optimizers.LossScaleOptimizer)],
)
def test_a_compiled_model_in_float16_has_the_configured_scale(scale, cls):
    given = params(mixed_precision_dtype="float16", loss_scale=scale)
    trainer = create_trainer(given, compiling_task(), train=True, evaluate=False)
    assert type(trainer.optimizer) is type(trainer.model.optimizer) is cls
    trainer.train(4)
    trainer.close()
    assert scale is None or float(trainer.optimizer.dynamic_scale) == scale
    assert int(trainer.optimizer.iterations) > 0


def decaying():
    """Returns an experiment whose second layer does not decay."""
    lists = {"weight_decay_rate": 0.5, "exclude_from_weight_decay": ["dense_1/"]}
    given = tiny_params()
    given.override({"trainer": {"optimizer_config": {"optimizer": {"type": "adamw", "adamw": lists}}}})
    return given


def test_what_does_not_decay_is_the_same_whatever_was_built_before():
    """The second model of a process has other Keras paths, as that of a resumed run may have."""
    trained = []
    for _ in range(2):
        trainer = create_trainer(decaying(), TinyTask(), train=True, evaluate=False)
        trainer.train(4)
        trainer.close()
        trained.append(weights(trainer.model))
    np.testing.assert_array_equal(*trained)


def test_a_further_stage_names_its_variables_as_the_first_did():
    trainer = create_trainer(decaying(), Staged(), train=True, evaluate=False)
    for stage in range(2):
        trainer.train(8)
        assert trainer.stage == stage
        names = trainer.optimizer._named(trainer.model.trainable_variables)
        assert names == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    trainer.close()
