"""The language model of the shape of GPT-2: its parts, its data, and that a killed run resumes exactly."""

import keras
import numpy as np
import pytest
from keras import ops

import everstep as es
from everstep.errors import UsageError
from everstep.recipes.gpt2_config import GPT2ModelConfig
from everstep.recipes.gpt2_task import generate_tokens, gpt2, read_tokens

pytestmark = pytest.mark.backend

SMALL = {"vocabulary": 16, "context": 8, "layers": 1, "heads": 2, "width": 8}


def test_it_has_the_parameters_of_gpt2():
    # Counted, not built: 124 million numbers take a while.
    config = GPT2ModelConfig(**SMALL, bias=True)
    count = 16 * 8 + 8 * 8 + (12 * 8 * 8 + 13 * 8) + 2 * 8
    assert gpt2(config).count_params() == count
    large = GPT2ModelConfig()
    assert 124e6 < large.vocabulary * 768 + large.context * 768 + large.layers * 12 * 768**2 < 125e6


@pytest.mark.parametrize("fused", [True, False])
def test_a_token_does_not_see_later_ones(fused):
    model = gpt2(GPT2ModelConfig(**SMALL, fused_qkv=fused))
    tokens = np.int32([[1, 2, 3, 4, 5, 6, 7, 8]])
    other = tokens.copy()
    other[0, 5] = 9
    before, after = (ops.convert_to_numpy(model(each)) for each in (tokens, other))
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not np.allclose(before[:, 5:], after[:, 5:])


def test_its_file_needs_no_custom_classes(tmp_path):
    model = gpt2(GPT2ModelConfig(**SMALL))
    model.save(tmp_path / "model.keras")
    tokens = np.int32([[1, 2, 3, 4, 5, 6, 7, 8]])
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(*(ops.convert_to_numpy(each(tokens)) for each in (model, loaded)))


def test_logits_are_in_the_type_of_the_model():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = gpt2(GPT2ModelConfig(**SMALL))
        assert {model.output.dtype, *(layer.output.dtype for layer in model.get_layer("block_0").layers)} == {
            "bfloat16"
        }
    finally:
        keras.config.set_dtype_policy(before)


def test_data_is_generated_or_read(tmp_path):
    rows = generate_tokens(50, 8, 16, seed=0)
    assert rows.shape == (50, 9)
    assert 0.7 < ((rows[:, :-1] * 5 + 7) % 16 == rows[:, 1:]).mean() < 0.85
    np.arange(20, dtype="uint16").tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "tokens.npy", np.arange(20))
    for name in ("tokens.bin", "tokens.npy"):
        read = read_tokens(str(tmp_path / name), 8)
        assert read.dtype == "int32"
        assert read.tolist() == [[*range(9)], [*range(8, 17)]]


@pytest.mark.parametrize(
    ("path", "text"), [("x.txt", "one file of tokens"), ("none.bin", "cannot be read"), (["a.bin"], "one file")]
)
def test_other_files_are_refused(path, text):
    with pytest.raises(UsageError) as caught:
        read_tokens(path, 8)
    assert text in caught.value.reason


def run(directory, steps, task, runtime, trainer):
    params = es.get_exp_config("text/gpt2_tiny")
    intervals = {"train_steps": steps, "steps_per_loop": 2, "checkpoint_interval": 2, "validation_interval": 4}
    optimizer_config = {**LENGTH, **trainer}
    params.override({"task": {"model": SMALL, "generated_sequences": 64, **task}, "runtime": runtime})
    params.override({"trainer": {**intervals, "optimizer_config": optimizer_config}})
    model, logs = es.run_experiment(es.get_task(params.task), params, directory, export=False, verbose=False)
    return [ops.convert_to_numpy(variable) for variable in model.variables], logs


LENGTH = {"learning_rate": {"cosine": {"decay_steps": 4}}}  # the same for the part that is trained first
CASES = {
    "chunks_and_remat": {"task": {"loss_chunk_tokens": 100}, "runtime": {"remat": ["block"]}, "trainer": {}},
    "muon": {"task": {}, "runtime": {}, "trainer": {"optimizer": {"type": "muon"}}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_in_parts_ends_like_a_whole_one(case, tmp_path):
    whole, logs = run(tmp_path / "whole", 4, **CASES[case])
    run(tmp_path / "parts", 2, **CASES[case])
    parts, _ = run(tmp_path / "parts", 4, **CASES[case])
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)
    assert logs["perplexity"] == pytest.approx(np.exp(logs["validation_loss"]), rel=1e-5)


@pytest.mark.full
def test_the_tiny_one_finds_the_rule(tmp_path):
    params = es.get_exp_config("text/gpt2_tiny")
    _, logs = es.run_experiment(es.get_task(params.task), params, tmp_path / "run", export=False, verbose=False)
    assert logs["perplexity"] < 10
