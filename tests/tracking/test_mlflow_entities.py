import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import (
    _validate_batch_log_data,  # what an MLflow server itself checks with
    _validate_length_limit,
)

from everstep.tracking.mlflow import Entity, entities, flattened


def metrics(values, kind="train"):
    return entities({"type": "metrics", "time": 7, "step": 3, "kind": kind, "values": values})


def keys(values, kind="train"):
    return [entity.key for entity in metrics(values, kind)]


def test_a_point():
    assert metrics({"loss": 0.5}) == [Entity("metrics", "loss", 0.5, 7, 3)]


def test_validation_does_not_share_a_name_with_training():
    assert keys({"accuracy": 1, "validation_loss": 2}, "validation") == ["validation_accuracy", "validation_loss"]
    assert keys({"accuracy": 1}) == ["accuracy"]


def test_numbers_that_json_cannot_spell():
    values = [entity.value for entity in metrics({"a": "NaN", "b": "Infinity", "c": "-Infinity"})]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("name", "key"),
    [("top@5", "top_5"), ("a/b", "a/b"), ("/a//b/", "_/a/_/b/_"), ("../x", "_/x"), (".", "_"), ("", "_"), ("é", "é")],
)
def test_names_that_mlflow_refuses_are_made_valid(name, key):
    assert keys({name: 1.0}) == [key]


def test_names_that_come_to_the_same_key_stay_apart():
    first, second = keys({"a;b": 1.0, "a@b": 1.0})
    assert first == "a_b"
    assert second.startswith("a_b_")


def test_long_values_are_cut_visibly():
    (entity,) = entities({"type": "params", "time": 7, "values": {"a": "x" * 9000}})
    assert len(entity.value) == 6000
    assert entity.value.endswith("xx… (cut: 9000 characters)")


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=20), max_size=5))
def test_whatever_the_names_mlflow_takes_them_and_they_stay_apart(values):
    numbers = dict.fromkeys(values, 1.0)
    found = metrics(numbers)
    texts = entities({"type": "params", "time": 7, "values": values})
    _validate_batch_log_data([_Like(entity) for entity in found], [_Like(entity) for entity in texts], [])
    for entity in found:
        _validate_length_limit("key", 250, entity.key)
    assert len({entity.key for entity in found}) == len(values)


class _Like:
    def __init__(self, entity):
        self.key, self.value, self.timestamp, self.step = entity.key, entity.value, entity.time, entity.step


def test_leaves_of_a_configuration():
    nested = {"trainer": {"train_steps": 10, "loss": None}, "flags": [1, 2], "empty": {}}
    assert flattened(nested) == {
        "trainer.train_steps": "10",
        "trainer.loss": "None",
        "flags": "[1, 2]",
        "empty": "{}",
    }
