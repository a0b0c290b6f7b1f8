"""Learning rates by layer: which variable has which factor, in a run, and after a resume."""

import re

import keras
import numpy as np
import pytest

import everstep as es
from everstep.engine.state import name_variables
from everstep.errors import UsageError
from everstep.optim import OptimizationConfig
from everstep.run.record import read
from everstep.task.optim.building import build
from everstep.task.optim.layer_rates import by_depth, by_name, rate_table
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, tiny_params

pytestmark = pytest.mark.slow

KEY = "trainer.optimizer_config.layer_rates"

GPT = [
    "token_embedding/embeddings",
    "position_embedding/embeddings",
    *(f"transformer_layer_{number}/{part}/kernel" for number in range(3) for part in ("dense_1", "dense_2")),
    "layer_norm/gamma",
]


def factors(names, decay=0.5, blocks=""):
    return [rate.factor for rate in by_depth(names, decay, blocks, KEY)]


def test_the_head_has_the_rate_and_embeddings_the_lowest():
    rates = by_depth(GPT, 0.5, "", KEY)
    assert [rate.factor for rate in rates] == [1 / 16, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1]
    assert [rate.layer for rate in rates[1:4]] == ["before the blocks", *["transformer_layer_0"] * 2]


def test_without_a_head_the_last_block_has_the_rate():
    adapters = [f"transformer_layer_{number}/query/lora_kernel_a" for number in range(3)]
    assert factors(adapters) == [1 / 4, 1 / 2, 1]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dense/kernel", "dense/bias", "dense_1/kernel", "logits/kernel"], [1 / 4, 1 / 4, 1 / 2, 1]),
        (["conv2d/kernel", "conv2d_1/kernel", "dense/kernel"], [1 / 4, 1 / 2, 1]),
        (["stem/kernel", "stack0_block0/kernel", "stack0_block1/kernel", "stack1_block0/kernel"], [0.25, 0.5, 0.5, 1]),
        (["encoder/embedding/w", "encoder/block_1/w", "encoder/block_2/w", "encoder/ln/w"], [1 / 8, 1 / 4, 1 / 2, 1]),
        (["layer_9/w", "between/w", "layer_10/w"], [0.5, 0.5, 1]),
    ],
)
def test_blocks_are_layers_whose_names_differ_in_a_number(names, expected):
    assert factors(names) == expected


def test_blocks_by_an_expression():
    names = ["in/w", "block_a0/w", "block_b0/w", "block_a1/w", "out/w"]
    assert factors(names, blocks="block_[ab]([0-9])/") == [0.125, 0.25, 0.25, 0.5, 1]
    with raises_problem(
        key="trainer.optimizer_config.layer_rates.blocks", received="block_(.)", reason="not a number"
    ) as error:
        factors(names, blocks="block_(.)")
    assert error.value.key == f"{KEY}.blocks"
    with raises_problem(
        key="trainer.optimizer_config.layer_rates.blocks",
        received="layer_([0-9])",
        reason="matches no trained variable",
    ):
        factors(names, blocks="layer_([0-9])")
    with raises_problem(
        key="trainer.optimizer_config.layer_rates.decay", received=0.5, reason="found no blocks"
    ) as error:
        factors(["in/w", "out/w"])
    assert error.value.key == f"{KEY}.decay"
    assert f"{KEY}.blocks" in error.value.remedy


def test_a_variable_matches_one_expression():
    assert by_name(GPT, {"embedding": 0.1}, KEY).keys() == set(GPT[:2])
    with raises_problem(
        key="trainer.optimizer_config.layer_rates", received="embeding", reason="matches no trained variable"
    ) as error:
        by_name(GPT, {"embeding": 0.1}, KEY)
    assert "token_embedding/embeddings" in error.value.remedy
    with raises_problem(
        key="trainer.optimizer_config.layer_rates",
        received="token",
        reason="'embedding' matches token_embedding/embeddings, too",
    ) as error:
        by_name(GPT, {"embedding": 0.1, "token": 0.5}, KEY)


def model():
    layers = [keras.layers.Dense(3), keras.layers.LayerNormalization(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((4,)), *layers])


def test_an_expression_takes_precedence_over_depth():
    rates = {"decay": 0.5, "factors": {"bias": 3}}
    optimizer = build(OptimizationConfig({"layer_rates": rates, "ema": {}}))
    built = model()
    name_variables(TinyTask(), built, optimizer)
    optimizer.build(built.trainable_variables)
    lines = rate_table(optimizer).splitlines()
    assert [line.split() for line in lines] == [
        ["0.5", "dense", "(3", "variables)"],  # and the normalization that follows it
        ["3", "bias", "(2", "variables)"],
        ["1", "dense_1", "(1", "variable)"],
    ]
    assert rate_table(build(OptimizationConfig())) == ""


# -- in a run ---------------------------------------------------------------------------------------------------------


def params(optimizer="adamw", **layer_rates):
    config = tiny_params(train_steps=8, steps_per_loop=2, checkpoint_interval=2)
    fields = {"adamw": {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]}}.get(optimizer, {})
    config.trainer.override(
        {
            "optimizer_config": {
                "optimizer": {"type": optimizer, optimizer: fields},
                "gradient_accumulation_steps": 2,
                "ema": {"average_decay": 0.9},
                "layer_rates": layer_rates,
            }
        }
    )
    return config


def run(directory, config, **arguments):
    model, _ = es.run_experiment(TinyTask(), config, directory, "train", export=False, **arguments)
    return model, read(directory)


@pytest.mark.backend
@pytest.mark.daily("torch")
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.full)])
def test_a_resumed_run_has_the_same_rates(optimizer, tmp_path, capsys):
    """With weight decay, accumulation and averages; stopped in the middle of an accumulation."""
    config = params(optimizer, factors={"bias": 0.25})
    _, whole = run(tmp_path / "whole", config, verbose=True)
    assert re.search(
        r"factors of the learning rate:\n  1 +all others \(\d variables\)\n  0.25 ", capsys.readouterr().err
    )
    part = config.replace(trainer={"train_steps": 3, "steps_per_loop": 1, "checkpoint_interval": 1})
    run(tmp_path / "part", part, verbose=False)
    _, resumed = run(tmp_path / "part", config, verbose=False)
    assert resumed["digest"] == whole["digest"]
    with raises_problem(key="trainer.optimizer_config.layer_rates.factors.bias", reason="0.25 -> 0.5"):
        run(tmp_path / "part", params(optimizer, factors={"bias": 0.5}), verbose=False)


@pytest.mark.backend
@pytest.mark.daily("torch")
def test_half_the_rate_is_half_the_step(tmp_path):
    def trained(rate, **more):
        config = tiny_params(train_steps=1, steps_per_loop=1)
        optimizer = {"optimizer": {"type": "sgd"}, "learning_rate": rate, "warmup": {"type": None}, **more}
        config.trainer.override({"optimizer_config": optimizer})
        model, _ = run(tmp_path / f"{rate}{len(more)}", config, verbose=False)
        return [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]

    before, plain = trained(0.0), trained(0.5)
    scaled = trained(0.5, layer_rates={"factors": {"kernel": 0.5}})
    for start, full, half in zip(before, plain, scaled, strict=True):
        assert np.any(full != start)
        factor = 0.5 if full.ndim > 1 else 1.0
        np.testing.assert_allclose(half - start, factor * (full - start), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("layer_rates", "key"),
    [
        ({"factors": {"bais": 2}}, "factors"),
        ({"factors": {"bias": 2, "dense": 0.5}}, "factors"),
        ({"decay": 0.9, "blocks": "layer_([0-9])"}, "blocks"),
        ({"factors": {"bias": 0}}, "factors"),
    ],
)
def test_rates_that_do_not_fit_are_refused_before_training(layer_rates, key, tmp_path):
    with pytest.raises(UsageError) as error:
        run(tmp_path / "run", params(**layer_rates), verbose=False)
    assert error.value.key == f"{KEY}.{key}"
    assert not (tmp_path / "run" / "checkpoints").exists()
