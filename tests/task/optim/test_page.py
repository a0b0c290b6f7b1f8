"""The configurations in docs/how-to/optimizers.md can be built."""

from pathlib import Path

import pytest

import everstep
from everstep.config import apply
from everstep.task.optim.building import build
from everstep.task.optim.ema import find_average
from everstep.task.optim.optimizers import Lamb

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "optimizers.md"
EXAMPLES = [part.partition("```")[0] for part in PAGE.read_text("utf-8").split("```yaml\n")[1:]]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_loaded_and_built(example, tmp_path):
    (tmp_path / "values.yaml").write_text(example, "utf-8")
    params = apply(everstep.get_exp_config("mnist/mlp"), [tmp_path / "values.yaml"])
    params.validate()
    assert find_average(build(params.trainer.with_learning_rate_length().optimizer_config)).average_decay == 0.999


def test_the_first_example_builds_what_it_shows(tmp_path):
    (tmp_path / "values.yaml").write_text(EXAMPLES[0], "utf-8")
    trainer = apply(everstep.get_exp_config("mnist/mlp"), [tmp_path / "values.yaml"]).trainer
    optimizer = build(trainer.with_learning_rate_length().optimizer_config)
    assert isinstance(optimizer.inner_optimizer, Lamb)
    assert optimizer.inner_optimizer.exclude_from_decay == ["bias", "norm"]
    schedule = optimizer.inner_optimizer._learning_rate
    assert [float(schedule(step)) for step in (0, 500, 10_000)] == pytest.approx([0.0, 0.0019, 0.0], abs=1e-8)
