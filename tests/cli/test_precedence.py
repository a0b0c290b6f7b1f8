"""Five layers say what one key is; the last of those that speak wins, whichever are dropped."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from everstep.config import dialect, register_experiment
from everstep.config import registry as known
from everstep.experiment_config import ExperimentConfig

LAYERS = {
    "file": (2, ["--config-file=a.yaml"]),
    "gin": (3, ["--gin_params=RuntimeConfig.seed = 3"]),
    "flag": (4, ["--seed=4"]),
    "override": (5, ["runtime.seed=5"]),
}
CHOSEN = [names for count in range(5) for names in itertools.combinations(LAYERS, count)]


@pytest.fixture(autouse=True)
def own_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_experiments", dict(known._experiments))
    register_experiment("own/seeded")(lambda: ExperimentConfig({"runtime": {"seed": 1}}))


@pytest.mark.parametrize("names", CHOSEN, ids=["+".join(("factory", *names)) for names in CHOSEN])
def test_the_last_layer_wins(everstep: Any, names: tuple[str, ...]) -> None:
    Path("a.yaml").write_text("runtime: {seed: 2}")
    # Where they stand on the command line does not matter.
    words = [word for name in reversed(names) for word in LAYERS[name][1]]
    outcome = everstep("config", "own/seeded", *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert dialect.load(outcome.out)["runtime"]["seed"] == (LAYERS[names[-1]][0] if names else 1)


def test_within_a_layer_the_last_one_wins(everstep: Any) -> None:
    Path("a.yaml").write_text("runtime: {seed: 2}")
    Path("b.yaml").write_text("runtime: {seed: 12}")
    pairs = [
        (["--config-file=a.yaml", "--config-file=b.yaml"], 12),
        (["--gin_params=RuntimeConfig.seed = 3", "--gin_params=RuntimeConfig.seed = 13"], 13),
        (["--params-override=runtime.seed=5", "runtime.seed=15"], 15),
        (["runtime.seed=15", "--params-override=runtime.seed=5"], 15),
    ]
    for words, seed in pairs:
        assert dialect.load(everstep("config", "own/seeded", *words).out)["runtime"]["seed"] == seed
