"""The experiments that generate their own data: the data, and that they reach the accuracy they state."""

import keras
import numpy as np
import pytest

import everstep as es
from everstep.errors import UsageError
from everstep.model_garden.gin import bindings as gin_bindings
from everstep.model_garden.gin import parse_config_files_and_bindings
from everstep.recipes import sentences, sums
from everstep.recipes.transformer import feed_forward, self_attention, transformer
from everstep.recipes.transformer_config import TransformerConfig
from everstep.task.classification import IGNORED
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

SMALL = TransformerConfig(width=8, depth=1, heads=2, hidden=8)

# What each states, and the log that shows it.
STATED = {
    "regression/sine": lambda logs: logs["mae"] < 0.02,
    "mnist/augmented": lambda logs: logs["accuracy"] > 0.975,
    "mnist/quick": lambda logs: logs["accuracy"] > 0.975,
    "text/tiny": lambda logs: logs["accuracy"] > 0.99,
    "text/tags": lambda logs: logs["accuracy"] > 0.99,
}
SEVERAL_TASKS = {
    "multitask/digits": lambda logs: logs["digit/accuracy"] > 0.97 and logs["parity/accuracy"] > 0.98,
}
READ_FILES = {
    "text/gpt2_shakespeare": lambda logs: logs["validation_loss"] < 2.1,
}


def run(name, directory, **trainer):
    params = es.get_exp_config(name)
    params.override({"trainer": trainer})
    task = es.get_task(params.task)
    return es.run_experiment(task, params, directory, export=False, verbose=False)


@pytest.mark.full
@pytest.mark.parametrize("name", [*STATED, *SEVERAL_TASKS, *READ_FILES])
def test_states_what_it_reaches(name, tmp_path):
    _, logs = run(name, tmp_path / "run")
    assert (STATED | SEVERAL_TASKS | READ_FILES)[name](logs), logs


def everyday(name):
    """One transformer is tried every day, on TensorFlow: XLA compiles it for half a minute."""
    is_slow = name.startswith("text/") and (keras.backend.backend() == "jax" or name != "text/tiny")
    return pytest.param(name, marks=pytest.mark.full if is_slow or name == "mnist/augmented" else ())


@pytest.mark.parametrize("name", [*map(everyday, STATED)])
def test_learns(name, tmp_path):
    steps = {"train_steps": 20, "steps_per_loop": 10, "validation_interval": 20, "validation_steps": 1}
    _, logs = run(name, tmp_path / "run", **steps)
    assert np.isfinite(logs["validation_loss"])


@pytest.mark.parametrize("name", [*STATED, "mnist/local", "mnist/cnn"])
@pytest.mark.parametrize("section", ["train_data", "validation_data"])
def test_data_settings_without_effect_are_refused(name, section, tmp_path):
    named = {"input_path": "/nothing/*.tfrecord", "tfds_split": "train"}
    params = es.get_exp_config(name)
    params.override({"task": {section: named}})
    with pytest.raises(UsageError) as error:
        es.run_experiment(es.get_task(params.task), params, tmp_path / "run", "train")
    keys = [line.partition(":")[0] for line in str(error.value).splitlines()]
    assert keys == [f"task.{section}.{key}" for key in named]
    assert "brings its own data" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_sums_are_right_and_kept_apart():
    tokens, labels = sums.split(training=True)
    assert tokens.shape == labels.shape == (8000, sums.LENGTH)
    line = "".join(sums.ALPHABET[token] for token in [*tokens[0], labels[0, -1]])
    question, answer = line.split("=")
    assert int(answer[::-1]) == sum(map(int, question.split("+")))
    assert (labels[:, : -sums.ANSWER] == IGNORED).all()
    np.testing.assert_array_equal(labels[:, -sums.ANSWER : -1], tokens[:, -sums.ANSWER + 1 :])
    held_out = {tuple(row[:5]) for row in sums.split(training=False)[0]}
    assert len(held_out) == 2000
    assert not held_out & {tuple(row[:5]) for row in tokens}


def test_sentences_need_their_context_and_are_kept_apart():
    tokens, labels = sentences.split(training=True)
    assert tokens.shape == labels.shape == (4000, sentences.LENGTH)
    assert ((tokens == 0) == (labels == IGNORED)).all()
    classes = {word: set(labels[tokens == token]) for token, word in enumerate(sentences.VOCABULARY) if token}
    assert {len(classes[word]) for word in ("paris", "florence", "sydney", "april", "june")} == {2}
    assert classes["meets"] == {sentences.CLASSES.index("other")}
    held_out = {tuple(row) for row in sentences.split(training=False)[0]}
    assert len(held_out) == 1000
    assert not held_out & {tuple(row) for row in tokens}


@pytest.mark.parametrize("causal", [True, False])
def test_only_a_causal_transformer_does_not_look_ahead(causal):
    keras.utils.set_random_seed(0)
    model = transformer(vocabulary=10, length=6, config=SMALL, causal=causal, outputs=4)
    tokens = np.int32([[1, 2, 3, 4, 5, 6]])
    other = np.int32([[1, 2, 3, 4, 5, 7]])
    before, after = (keras.ops.convert_to_numpy(model(each)) for each in (tokens, other))
    assert before.shape == (1, 6, 4)
    assert np.allclose(before[:, :5], after[:, :5], atol=1e-6) == causal
    assert not np.allclose(before[:, 5], after[:, 5])


def test_blocks_are_replaced_by_argument_and_by_gin():
    seen = []

    def mine(x, config):
        seen.append(config.hidden)
        return feed_forward(x, config)

    transformer(10, 6, SMALL, causal=True, feed_forward=mine)
    assert seen == [8]
    try:
        parse_config_files_and_bindings(None, ["transformer.feed_forward = @self_attention"])
        with pytest.raises(TypeError, match="causal"):  # which a feed-forward block does not take
            transformer(10, 6, SMALL, causal=True)
    finally:
        gin_bindings.clear()
    assert self_attention(keras.Input((6, 8)), SMALL, causal=True).shape == (None, 6, 8)


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"heads": 3}, {"key": "heads", "received": 3, "reason": "must divide the width, 64"}),
        ({"depth": 0}, {"key": "depth", "received": 0, "reason": "must be at least 1"}),
        ({"dropout": 1.0}, {"key": "dropout", "received": 1.0, "reason": "must be from 0 to below 1"}),
    ],
)
def test_wrong_shapes_are_refused(values, fields):
    with raises_problem(**fields):
        TransformerConfig(**values).validate()
