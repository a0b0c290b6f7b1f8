"""Which part of a variable goes where: decided from keys and shapes, without a backend."""

import pytest

from everstep.engine.config import RuntimeConfig
from everstep.engine.sharding import SMALL, ShardingPlan, check_batch, check_size, kind_of
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

SHAPES = {
    "model/embedding/embeddings": (1000, 64),
    "model/dense/kernel": (128, 512),
    "model/dense/bias": (512,),
    "model/odd/kernel": (151, 151),
    "task.critic/kernel": (256, 256),
    "task.critic_optimizer/task.critic/kernel/momentum": (256, 256),
    "optimizer/model/dense/kernel/momentum": (128, 512),
    "optimizer/inner/model/dense/kernel/row_factor": (128,),
    "optimizer/iteration": (),
    "metrics.train/confusion/total": (512, 512),
}


def test_fsdp_divides_the_largest_dimension_of_parameters_and_their_slots():
    specs = ShardingPlan({"data": 8}, "fsdp").specs(SHAPES)
    divided = {key: spec for key, spec in specs.items() if spec}
    assert divided == {
        "model/embedding/embeddings": ("data",),
        "model/dense/kernel": (None, "data"),
        "task.critic/kernel": ("data",),
        "task.critic_optimizer/task.critic/kernel/momentum": ("data",),
        "optimizer/model/dense/kernel/momentum": (None, "data"),
    }


def test_small_variables_and_one_device_are_not_divided():
    plan = ShardingPlan({"data": 8}, "fsdp")
    assert plan.spec_for_new((SMALL // 8, 8)) == ("data",)
    assert plan.spec_for_new((SMALL // 8 - 8, 8)) == ()
    assert set(ShardingPlan({"data": 1}, "fsdp").specs(SHAPES).values()) == {()}
    assert set(ShardingPlan({"data": 2, "model": 4}).specs(SHAPES).values()) == {()}


def test_a_layout_divides_what_it_matches_and_the_slots_of_that():
    layout = {"dense/kernel": [None, "model"], r"embeddings$": ["model", None], "critic/kernel": ["data", "model"]}
    plan = ShardingPlan({"data": 2, "model": 4}, layout)
    specs = plan.specs(SHAPES)
    assert {key: spec for key, spec in specs.items() if spec} == {
        "model/embedding/embeddings": ("model",),
        "model/dense/kernel": (None, "model"),
        "task.critic/kernel": ("data", "model"),
        "task.critic_optimizer/task.critic/kernel/momentum": ("data", "model"),
        "optimizer/model/dense/kernel/momentum": (None, "model"),
    }
    assert plan.bytes_per_device((256, 256), specs["task.critic/kernel"], "bfloat16") == 256 * 256 * 2 // 8
    assert plan.spec_for_new((1000, 64)) == ("model", "data")  # no more on a device than later


def test_kinds_of_variables():
    kinds = {key: kind_of(key, SHAPES) for key in SHAPES}
    assert kinds["task.critic_optimizer/task.critic/kernel/momentum"] == "optimizer slots"
    assert kinds["optimizer/iteration"] == "optimizer slots"
    assert kinds["task.critic/kernel"] == kinds["model/odd/kernel"] == "parameters"
    assert kinds["metrics.train/confusion/total"] == "other"


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"conv": ["model"]}, "matches no variable of the model or the task"),
        ({"momentum": ["model"]}, "matches no variable of the model or the task"),  # slots follow their parameters
        (
            {"dense": [None], "dense/kernel": [None, "model"]},
            "matches model/dense/kernel, which 'dense' matches, too",
        ),
        (
            {"odd": [None, "model"]},
            "matches model/odd/kernel of shape [151, 151], but 'model' has 4 devices, which do not divide 151",
        ),
        ({"bias": [None, "model"]}, "matches model/dense/bias of shape [512], which has fewer dimensions"),
    ],
)
def test_layouts_that_do_not_fit(layout, reason):
    with pytest.raises(UsageError) as error:
        ShardingPlan({"data": 2, "model": 4}, layout).specs(SHAPES)
    assert (error.value.key, error.value.reason) == ("runtime.sharding", reason)
    assert len(error.value.problems) == 1


def test_sizes_that_do_not_fit():
    check_size({"data": 2, "model": 4}, 8)
    check_batch(6, {"data": 2, "model": 4})
    with raises_problem(
        key="runtime.mesh", received={"data": 2, "model": 4}, reason="has 8 places, but the run has 2 devices"
    ):
        check_size({"data": 2, "model": 4}, 2)
    with raises_problem(key="task.train_data.global_batch_size", received=30, reason="must be a multiple of 4"):
        check_batch(30, {"data": 4})


@pytest.mark.parametrize(
    ("values", "key", "reason"),
    [
        ({"mesh": {"model": 8}}, "mesh", "has no axis 'data', which shares each batch"),
        ({"mesh": {"data": 0}}, "mesh.data", "must be at least 1"),
        ({"mesh": {"data": 2, "my axis": 2}}, "mesh", "is not a name for an axis"),
        ({"sharding": "fdsp"}, "sharding", "is no sharding"),
        ({"sharding": {"(": ["data"]}}, "sharding", "is not a regular expression: missing ), unterminated subpattern"),
        ({"sharding": {"kernel": ["model"]}}, "sharding", "'kernel' names the axis 'model', which the mesh does not"),
        ({"sharding": {"kernel": ["data", "data"]}}, "sharding", "'kernel' names the axis 'data' twice"),
    ],
)
def test_configurations_that_cannot_be(values, key, reason):
    with pytest.raises(UsageError) as error:
        RuntimeConfig(**values).validate()
    assert error.value.key == key
    assert error.value.reason.startswith(reason)
