"""What a request comes to: experiments, layers of values, and everything that can be wrong with them."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.resolving import ExperimentRequest, resolve
from everstep.cli.train import default_directory
from everstep.config import dialect, register_experiment
from everstep.config import registry as known
from everstep.experiment_config import ExperimentConfig
from everstep.extras import install_command


def config_of(outcome: Any) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return dialect.load(outcome.out)


def test_experiments_are_listed_with_their_first_line(everstep: Any) -> None:
    lines = everstep("experiments").out.splitlines()
    assert ["mnist/local", "A seconds-long run of everything, for debugging on any machine."] in [
        re.split(" {2,}", line) for line in lines
    ]
    assert '"mnist/mlp": "' in everstep("experiments", "--json").out


def test_config_prints_what_it_reads(everstep: Any) -> None:
    printed = config_of(everstep("config", "mnist/local", "trainer.train_steps=7", "--backend=jax"))
    assert printed["experiment"] == "mnist/local"
    assert printed["trainer"]["train_steps"] == 7
    assert printed["runtime"]["backend"] == "jax"
    Path("again.yaml").write_text(dialect.dump(printed))
    assert config_of(everstep("config", "--config_file=again.yaml")) == printed


def test_later_layers_win(everstep: Any) -> None:
    Path("a.yaml").write_text("runtime: {seed: 1, backend: tensorflow}")
    Path("b.yaml").write_text("runtime: {seed: 2}")
    words = ["config", "mnist/mlp", "--backend=jax"]
    layers = ["--config-file=a.yaml", "--config-file=b.yaml", "--seed=3", "--params_override=runtime.seed=4"]
    for count, seed in enumerate([1, 2, 3, 4], start=1):
        assert config_of(everstep(*words, *layers[:count]))["runtime"]["seed"] == seed
    assert config_of(everstep(*words, "runtime.seed=5", *layers))["runtime"]["seed"] == 5


@pytest.mark.parametrize("words", [["mnist/mlp"], ["--experiment=mnist/mlp"], ["mnist/mlp", "--experiment=mnist/mlp"]])
def test_the_experiment_may_be_named_in_any_way(everstep: Any, words: list[str]) -> None:
    assert config_of(everstep("config", *words, "runtime.seed=5"))["experiment"] == "mnist/mlp"
    assert config_of(everstep("config", "runtime.seed=5", "--experiment=mnist/mlp"))["runtime"]["seed"] == 5


def test_the_default_directory_follows_from_the_configuration(everstep: Any) -> None:
    first, again, other = (
        default_directory(resolve(ExperimentRequest("mnist/mlp", seed=seed))) for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert first.parts[0] == "runs"
    assert first.name.startswith("mnist-mlp-")
    assert len(first.name) == len("mnist-mlp-") + 10


BAD = [
    (["mnist/mpl"], "no experiment 'mnist/mpl': did you mean 'mnist/mlp'"),
    ([], "EXPERIMENT: none is given"),
    (["mnist/mlp", "--experiment=mnist/cnn"], "the command line says 'mnist/mlp', but --experiment says 'mnist/cnn'"),
    (["mnist/cnn", "--config-file=mlp.yaml"], "but mlp.yaml:1 says 'mnist/mlp'"),
    (["--config-file=odd.yaml"], "experiment: received 3, expected text (from odd.yaml:1)"),
    (["mnist/mlp", "--config-file=none.yaml"], "config file none.yaml: does not exist"),
    (["mnist/mlp", "more"], "KEY=VALUE: received 'more', unexpected argument: write values as key=value: trainer"),
    (["mnist/mlp", "--backend=jaxx"], "runtime.backend: received 'jaxx', unknown backend: did you mean 'jax'?"),
    (["mnist/mlp", "runtime.backend=jaxx"], "runtime.backend: received 'jaxx', unknown backend"),
    (["mnist/mlp", "runtime.backend=3"], "runtime.backend"),
    (["mnist/mlp", "trainer.train_stepz=3"], "trainer.train_stepz: received 3, unknown key"),
    (["mnist/mlp", "epochs=5"], "epochs: received 5, unknown key: did you mean 'trainer.epochs=5'?"),
    (["mnist/mlp", "train_steps=5"], "did you mean 'trainer.train_steps=5'?"),
    (["mnist/mlp", "train_stesp=5"], "did you mean 'trainer.train_steps=5'?"),
    (["mnist/mlp", "units=64"], "did you mean 'task.model.units=64'?"),
    (["mnist/mlp", "trainer.learning_rate=1"], "did you mean 'optimizer_config.learning_rate=1'?"),
    (["mnist/mlp", "--epochs", "5"], "No such option: --epochs; a value is written without dashes: trainer.epochs=5 "),
    (["--train_steps=5", "mnist/mlp"], "a value is written without dashes: trainer.train_steps=5 "),
    (["mnist/mlp", "--dropout", "0.1"], "a value is written without dashes: task.model.dropout=0.1 "),
    (["unknown/yet", "--epochs"], "a value is written without dashes: trainer.epochs=… "),
    (["mnist/mlp", "--no-such-thing"], "No such option: --no-such-thing (see: "),
    (["mnist/mlp", "trainer.train_steps=many"], "trainer.train_steps"),
    (["mnist/mlp", "trainer.optimizer_config.learning_rate=high"], "'high', expected a number or LrConfig"),
    (["mnist/mlp", "trainer.train_steps=0"], "trainer.train_steps: received 0, must be at least 1"),
    (["mnist/mlp", "trainer.train_steps=-5"], "trainer.train_steps: received -5, must be at least 1"),
    (["mnist/mlp", "trainer.validation_steps=0"], "trainer.validation_steps: received 0, must be at least 1, or -1"),
    (["mnist/mlp", "--import=no_such_module"], "--import: received 'no_such_module', there is no such module"),
    (["mnist/mlp", "--import=my/module"], "--import: received 'my/module', is no module name"),
    (["mnist/mlp", "--import=my/module.py"], "'my/module.py', is a file, expected a module: write --import my.module"),
    (["mnist/mlp", "--import=module.py"], "'module.py', is a file, expected a module: write --import module"),
    (["mnist/mlp", "--model-dir=odd.yaml"], "--model-dir: received 'odd.yaml', is a file: choose a directory"),
    (["mnist/mlp", "--model-dir=odd.yaml/run"], "odd.yaml' is a file: choose a directory"),
    (["mnist/mlp", "--model-dir="], "--model-dir: received '', expected a directory"),
]


@pytest.mark.parametrize(("words", "text"), BAD)
def test_bad_requests_leave_nothing_behind(everstep: Any, words: list[str], text: str) -> None:
    Path("mlp.yaml").write_text("experiment: mnist/mlp")
    Path("odd.yaml").write_text("experiment: 3")
    outcome = everstep("train", *words)
    assert outcome.code == 2
    assert outcome.err.startswith("everstep: error: ")
    assert text in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert sorted(path.name for path in Path().iterdir()) == ["mlp.yaml", "odd.yaml"]


def test_a_directory_that_cannot_be_written_to(everstep: Any) -> None:
    if os.geteuid() == 0:  # permissions do not bind root
        place = "/proc/everstep-run"
    else:
        Path("locked").mkdir(mode=0o500)
        place = "locked/run"
    outcome = everstep("train", "mnist/mlp", f"--model_dir={place}")
    assert outcome.code == 2
    assert f"--model-dir: received '{place}', " in outcome.err
    assert "cannot be written to: " in outcome.err
    assert "choose a directory you may write to" in outcome.err
    assert not Path(place).exists()


def test_a_backend_that_is_not_installed(everstep: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    outcome = everstep("train", "mnist/mlp", "--backend=tensorflow")
    assert outcome.code == 2
    assert "runtime.backend: received 'tensorflow', the package 'tensorflow' is not installed" in outcome.err
    assert install_command("tensorflow") in outcome.err


def test_an_experiment_cannot_choose_the_backend(everstep: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(known, "_experiments", dict(known._experiments))
    register_experiment("own/tf")(lambda: ExperimentConfig({"runtime": {"backend": "tensorflow"}}))
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    outcome = everstep("config", "own/tf")
    assert outcome.code == 2
    assert "pass --backend tensorflow" in outcome.err
    assert config_of(everstep("config", "own/tf", "--backend=jax"))["runtime"]["backend"] == "jax"


def test_a_module_that_fails_is_shown_as_it_is(everstep: Any, tmp_path: Path) -> None:
    (tmp_path / "broken_module_x.py").write_text("import no_such_thing_x\n")
    outcome = everstep("train", "mnist/mlp", "--import", "broken_module_x")
    assert outcome.code == 1
    assert "ModuleNotFoundError: No module named 'no_such_thing_x'" in outcome.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "TARGET: received 'nowhere', is not a run directory: if it is an experiment, add --model-dir"),
        (["."], "TARGET: received '.', is not a run directory: it has no config.yaml"),
        (["mnist/mlp", "--model-dir=nowhere"], "--model-dir: received 'nowhere', is not a directory"),
    ],
)
def test_eval_needs_a_run(everstep: Any, words: list[str], text: str) -> None:
    outcome = everstep("eval", *words)
    assert outcome.code == 2
    assert text in outcome.err
