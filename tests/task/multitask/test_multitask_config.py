"""Configurations that are refused before anything is built, with their keys."""

import pytest

import everstep as es
from everstep.errors import NOTHING, UsageError
from everstep.multitask import MultiTaskConfig, SamplerConfig, TaskRoutine
from everstep.testing.problems import raises_problem


def config(*routines, **fields):
    return MultiTaskConfig(task_routines=[TaskRoutine(r) for r in routines], **fields)


ONE, TWO = {"task_name": "one"}, {"task_name": "two"}


def test_false_for_cache_is_as_good_as_the_default():
    """A file that Model Garden wrote has it."""
    config(ONE, train_data=es.DataConfig(cache=False), validation_data=es.DataConfig(cache=False)).validate()


@pytest.mark.parametrize(
    ("wrong", "key", "received"),
    [
        (config(), "task_routines", NOTHING),
        (config({**ONE, "task_weight": 0.0}), "task_routines", NOTHING),
        (config({}), "task_routines[0].task_name", ""),
        (config({"task_name": "a/b"}), "task_routines[0].task_name", "a/b"),
        (config(ONE, ONE), "task_routines[1].task_name", "one"),
        (config(ONE, {**TWO, "task_weight": -1.0}), "task_routines[1].task_weight", -1.0),
        (config({**ONE, "task_weight": float("inf")}), "task_routines[0].task_weight", float("inf")),
        (config({**ONE, "eval_steps": -1}), "task_routines[0].eval_steps", -1),
        (config(ONE, sampler=SamplerConfig(type=None)), "sampler.type", None),
        (config(ONE, train_data=es.DataConfig(global_batch_size=3)), "train_data", NOTHING),
        (config(ONE, validation_data=es.DataConfig(cache=True)), "validation_data", NOTHING),
        (
            config(ONE, sampler=SamplerConfig({"type": "annealing", "annealing": {"steps_per_epoch": 0}})),
            "sampler.annealing.steps_per_epoch",
            0,
        ),
    ],
)
def test_refused(wrong, key, received):
    with pytest.raises(UsageError) as error:
        wrong.validate()
    assert (key, received) in [(problem.key, problem.received) for problem in error.value.problems]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (config(), "task_routines: has no task to train: add one with a task_weight above 0"),
        (config(ONE, ONE), "task_routines[1].task_name: received 'one', another task has this name"),
        (
            config(ONE, train_data=es.DataConfig(global_batch_size=3)),
            "train_data: only seed and limit_batches are read",
        ),
    ],
)
def test_messages(wrong, text):
    with pytest.raises(UsageError) as error:
        wrong.validate()
    assert text in str(error.value)


def test_accepted():
    config(ONE, {**TWO, "task_weight": 0.0, "eval_steps": 0}, train_data=es.DataConfig(seed=3)).validate()
    config(ONE, mode="joint", sampler=SamplerConfig(type=None)).validate()


def test_unknown_mode():
    with raises_problem(key="mode", received="jiont"):
        config(ONE, mode="jiont")


def test_tasks_keep_their_class_under_overrides():
    from everstep.recipes.multitask import DigitConfig

    experiment = es.get_exp_config("multitask/digits")
    experiment.override({"task": {"task_routines[1]": {"task_weight": 0.5, "task_config": {"num_samples": 7}}}})
    assert experiment.task.task_routines[1].task_config == DigitConfig(target="parity", num_samples=7)
    experiment.validate()
