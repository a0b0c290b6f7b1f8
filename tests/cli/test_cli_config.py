"""`everstep config`: every value with its origin, what differs, and the schema."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from everstep.config import Config, apply, dialect, get_exp_config, register_experiment
from everstep.config import registry as known
from everstep.engine.config import RuntimeConfig
from everstep.experiment_config import ExperimentConfig, with_learning_rate_length
from everstep.loop.config import TrainerConfig
from everstep.task.config import TaskConfig

OPTIMIZER = "trainer.optimizer_config.optimizer"
LENGTH = "trainer.optimizer_config.learning_rate.cosine.decay_steps"


def listing(outcome: Any) -> dict[str, tuple[str, str]]:
    """Returns the value and the comment of each line that has them, by its indented key."""
    assert (outcome.code, outcome.err) == (0, "")
    matches = [re.fullmatch(r"( *(?:- )?\w+): (.*?) *(?:  # (.*))?", line) for line in outcome.out.splitlines()]
    return {match[1]: (match[2], match[3]) for match in matches if match}


def lines(outcome: Any) -> list[str]:
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.splitlines()


@dataclasses.dataclass
class Layer(Config):
    units: int = 1
    rate: float = 0.5


@dataclasses.dataclass
class Stack(TaskConfig):
    layers: list[Layer] = [Layer(), Layer()]
    table: dict[str, Any] = {"a": 1}
    texts: list[str] = []
    maybe: Layer | None = None
    free: Config = Config({"units": 3})


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_experiments", dict(known._experiments))
    register_experiment("own/stack")(lambda: ExperimentConfig(task=Stack(texts=["x: y", "on"])))


# -- origins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist/mlp", "mnist/cnn", "mnist/local"])
def test_every_value_has_an_origin(everstep: Any, name: str) -> None:
    printed = everstep("config", name, "--backend=jax")
    own = {key: value for key, value in listing(printed).items() if key != "experiment"}
    assert {origin for _, origin in own.values()} == {"default", name, "--backend jax", "follows trainer.train_steps"}
    expected = with_learning_rate_length(apply(get_exp_config(name), overrides=["runtime.backend=jax"]))
    assert dialect.load(printed.out) == {"experiment": name, **expected.as_dict()}


def test_comments_line_up(everstep: Any) -> None:
    long = "x" * 80
    printed = lines(everstep("config", "mnist/mlp", f"task.name={long}"))
    columns = {line.index("  # ") for line in printed if "  # " in line and long not in line}
    assert len(columns) == 1
    assert columns.pop() < 60


def test_each_kind_of_origin(everstep: Any) -> None:
    Path("a.yaml").write_text("trainer:\n  train_steps: 5\n  steps_per_loop: 5\n")
    Path("b.toml").write_text("[runtime]\n\nseed = 4\n")
    words = ["--config-file=a.yaml", "--config-file=b.toml", "--backend=jax", "--params-override=trainer.max_to_keep=2"]
    words += ["--params-override={task: {num_samples: 64}}", "trainer.train_steps=7"]
    shown = listing(everstep("config", "mnist/local", *words))
    assert shown["  train_steps"] == ("7", "override 'trainer.train_steps=7'")
    assert shown["  steps_per_loop"] == ("5", "a.yaml:3")
    assert shown["  seed"] == ("4", "b.toml:3")
    assert shown["  backend"] == ("jax", "--backend jax")
    assert shown["  max_to_keep"] == ("2", "override 'trainer.max_to_keep=2'")
    assert shown["  num_samples"] == ("64", "override '{task: {num_samples: 64}}'")
    assert shown["  validation_steps"] == ("2", "mnist/local")
    assert shown["  enable_xla"] == ("false", "default")


def test_the_last_one_that_set_a_value_is_named(everstep: Any) -> None:
    Path("a.yaml").write_text("runtime: {seed: 1}")
    Path("b.yaml").write_text("runtime:\n  seed: 1\n")
    words = ["config", "mnist/mlp", "--config-file=a.yaml", "--config-file=b.yaml", "--seed=1"]
    for count, origin in [(3, "a.yaml:1"), (4, "b.yaml:2"), (5, "--seed 1")]:
        assert listing(everstep(*words[:count]))["  seed"] == ("1", origin)


def test_a_choice_in_a_group_is_named_with_its_file(everstep: Any) -> None:
    Path("conf/task/model").mkdir(parents=True)
    Path("conf/task/model/large.yaml").write_text("# wide\nunits: 2048\n")
    shown = listing(everstep("config", "mnist/mlp", "--config-dir=conf", "task/model=large"))
    assert shown["    units"] == ("2048", "conf/task/model/large.yaml:2")
    assert shown["    kind"] == ("mlp", "default")


def test_an_interpolation_is_named_where_it_is_written(everstep: Any) -> None:
    Path("a.yaml").write_text("trainer:\n  validation_interval: ${trainer.train_steps}\n")
    shown = listing(everstep("config", "mnist/mlp", "--config-file=a.yaml", "trainer.train_steps=30"))
    assert shown["  validation_interval"] == ("30", "a.yaml:2")


def test_a_backend_that_was_left_open(everstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    value, origin = listing(everstep("config", "mnist/mlp"))["  backend"]
    assert value == "jax"
    assert origin not in ("default", "mnist/mlp")


def test_the_branch_of_a_choice(everstep: Any) -> None:
    shown = listing(everstep("config", "mnist/mlp", f"{OPTIMIZER}.type=sgd", f"{OPTIMIZER}.sgd.momentum=0.9"))
    assert shown["      type"][0] == "null"  # of warmup, which comes last
    assert shown["        momentum"] == ("0.9", f"override '{OPTIMIZER}.sgd.momentum=0.9'")
    assert shown["        nesterov"] == ("false", "default")
    assert "        beta_1" not in shown


def test_an_alternative_says_what_it_gave_way_to(everstep: Any) -> None:
    shown = listing(everstep("config", "mnist/mlp", "trainer.epochs=2"))
    assert shown["  train_steps"] == ("null", "gives way to epochs")
    assert shown["  epochs"][1] == "override 'trainer.epochs=2'"
    assert listing(everstep("config", "mnist/mlp"))["  epochs"] == ("null", "default")


@pytest.mark.usefixtures("stack")
def test_lists_tables_and_new_keys(everstep: Any) -> None:
    Path("a.yaml").write_text("task:\n  maybe:\n    units: 8\n  table:\n    b: {c: 1}\n")
    untouched = everstep("config", "own/stack").out
    assert {line.split("# ")[1] for line in untouched.splitlines() if "units" in line or " a: 1" in line} == {"default"}
    words = ["own/stack", "--config-file=a.yaml", "task.layers[1].units=7", "+task.free.new=[1]"]
    printed = everstep("config", *words)
    shown = listing(printed)
    assert shown["    - units"] == ("7", "override 'task.layers[1].units=7'")
    text = "\n".join(re.sub(" +# ", " # ", line) for line in lines(printed))
    first = "  layers:\n    - units: 1 # default\n      rate: 0.5 # default\n"
    assert f"{first}    - units: 7 # override 'task.layers[1].units=7'\n      rate: 0.5 # default\n" in text
    assert "  table:\n    a: 1 # default\n    b:\n      c: 1 # a.yaml:5\n" in text
    assert "  texts: ['x: y', 'on'] # own/stack\n" in text
    assert "  maybe:\n    units: 8 # a.yaml:3\n    rate: 0.5 # default\n" in text
    assert "  free:\n    units: 3 # default\n    new: [1] # override '+task.free.new=[1]'\n" in text
    assert dialect.load(printed.out)["task"]["layers"][1] == {"units": 7, "rate": 0.5}


def test_what_is_printed_can_be_read_again(everstep: Any) -> None:
    special = 'task.name="a # b: c\\n\\té"'
    first = everstep("config", "mnist/local", special, f"{OPTIMIZER}.type=adamw", "--backend=jax")
    Path("again.yaml").write_text(first.out)
    again = everstep("config", "--config-file=again.yaml")
    assert dialect.load(again.out) == dialect.load(first.out)
    assert dialect.load(first.out)["task"]["name"] == "a # b: c\n\té"
    assert all(origin.startswith("again.yaml:") for key, (_, origin) in listing(again).items() if key != "experiment")


def test_a_long_override_does_not_break_the_listing(everstep: Any) -> None:
    long = "{task: {name: '" + "x y\n" * 60 + "'}}"
    printed = everstep("config", "mnist/mlp", "--params-override", long)
    comment = listing(printed)["  name"][1]
    assert comment.startswith('override "{task: {name:')
    assert comment.endswith("…")
    assert len(comment) == 100
    assert dialect.load(printed.out)["task"]["name"].startswith("x y x y")


def test_the_modules_to_import_are_part_of_the_file(everstep: Any) -> None:
    Path("a_module_of_mine.py").write_text("")
    printed = everstep("config", "mnist/mlp", "--import=a_module_of_mine")
    assert dialect.load(printed.out)["imports"] == ["a_module_of_mine"]


# -- differences -----------------------------------------------------------------------------------------------------


def test_nothing_differs(everstep: Any) -> None:
    assert lines(everstep("config", "mnist/mlp", "--diff=factory")) == []
    assert lines(everstep("config", "mnist/mlp", "trainer.train_steps=4000", "--diff=factory")) == []


def test_what_differs_from_the_experiment(everstep: Any) -> None:
    Path("a.yaml").write_text("trainer:\n  train_steps: 5\n")
    words = ["--config-file=a.yaml", "--seed=2", f"{OPTIMIZER}.type=sgd", f"{OPTIMIZER}.sgd.momentum=0.5"]
    found = lines(everstep("config", "mnist/mlp", *words, "--diff", "factory"))
    assert found[0] == f"{OPTIMIZER}.type: adam -> sgd  # override '{OPTIMIZER}.type=sgd'"
    assert re.fullmatch(rf"{OPTIMIZER}\.adam: {{clipnorm: null, .*}} -> \(absent\)", found[1])
    assert found[2].startswith(f"{OPTIMIZER}.sgd: (absent) -> {{clipnorm: null")
    assert found[2].endswith(f"  # default, override '{OPTIMIZER}.sgd.momentum=0.5'")
    assert found[3:] == [
        f"{LENGTH}: 4000 -> 5  # follows trainer.train_steps",
        "trainer.train_steps: 4000 -> 5  # a.yaml:2",
        "runtime.seed: 0 -> 2  # --seed 2",
    ]


def test_what_differs_from_a_run(everstep: Any) -> None:
    Path("run").mkdir()
    stored = with_learning_rate_length(
        apply(get_exp_config("mnist/mlp"), overrides=["runtime.backend=jax", "runtime.seed=3"])
    )
    Path("run/config.yaml").write_text(f"experiment: mnist/mlp\nimports: [some.module]\n{stored.to_yaml()}")
    found = lines(everstep("config", "mnist/mlp", "--backend=jax", "trainer.train_steps=9", "--diff=run"))
    assert found == [
        f"{LENGTH}: 4000 -> 9  # follows trainer.train_steps",
        "trainer.train_steps: 4000 -> 9  # override 'trainer.train_steps=9'",
        "runtime.seed: 3 -> 0  # default",
    ]
    assert lines(everstep("config", "mnist/mlp", "--backend=jax", "--seed=3", "--diff=run")) == []


def test_what_differs_from_a_file(everstep: Any) -> None:
    Path("little.yaml").write_text("task: {model: {units: 9}}")
    Path("cnn.yaml").write_text("experiment: mnist/cnn")
    assert lines(everstep("config", "mnist/mlp", "--diff=little.yaml")) == ["task.model.units: 9 -> 512  # default"]
    found = lines(everstep("config", "mnist/mlp", "--diff=cnn.yaml"))
    assert found[0] == "task.model.kind: cnn -> mlp  # default"
    assert found[-1] == "trainer.train_steps: 2000 -> 4000  # mnist/mlp"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--diff=nowhere"], "--diff: received 'nowhere', is no file or directory: name a run directory"),
        (["--diff=."], "--diff: received '.', has no config.yaml: name a run directory"),
        (["--diff=bad.yaml"], "trainer.train_stesp: received 1, unknown key: did you mean 'train_steps'"),
        (["--diff=other.yaml"], "experiment: no experiment 'mnist/mpl': did you mean 'mnist/mlp'"),
        (["--diff=factory", "--schema"], "--diff: received 'factory', --schema prints something else"),
        (["--schema", "trainer.train_steps=many"], "trainer.train_steps: received 'many'"),
    ],
)
def test_requests_that_cannot_be(everstep: Any, words: list[str], text: str) -> None:
    Path("bad.yaml").write_text("trainer: {train_stesp: 1}")
    Path("other.yaml").write_text("experiment: mnist/mpl")
    outcome = everstep("config", "mnist/mlp", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err


# -- schema ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist/mlp", "mnist/cnn", "mnist/local"])
def test_the_schema_fits_what_is_printed(everstep: Any, name: str) -> None:
    schema = json.loads(everstep("config", name, "--schema").out)
    check = jsonschema.Draft202012Validator(schema)
    printed = dialect.load(everstep("config", name, "trainer.train_steps=7").out)
    check.validate(printed)
    printed["trainer"]["train_stesp"] = 7
    assert not check.is_valid(printed)


def test_the_schema_knows_values_that_were_given(everstep: Any) -> None:
    schema = json.loads(everstep("config", "mnist/mlp", "trainer.train_steps=7", "--schema").out)
    assert schema["properties"]["trainer"]["properties"]["train_steps"]["default"] == 7


def test_help_shows_how_an_editor_is_told(everstep: Any) -> None:
    shown = everstep("config", "--help").out
    assert "everstep config mnist/mlp --schema > mnist.schema.json" in shown
    assert "# yaml-language-server: $schema=mnist.schema.json" in shown


def test_an_experiment_may_return_a_config_of_another_class(everstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_experiments", dict(known._experiments))
    parts = {"task": TaskConfig(), "trainer": TrainerConfig(), "runtime": RuntimeConfig()}
    register_experiment("own/plain")(lambda: Config({**parts, "note": "mine"}))
    register_experiment("own/part")(lambda: Config({"task": TaskConfig(), "trainer": {"train_steps": 3}}))
    printed = listing(everstep("config", "own/plain", "trainer.train_steps=7"))
    assert (printed["  train_steps"][0], printed["note"][0]) == ("7", "mine")
    outcome = everstep("config", "own/part")
    assert outcome.code == 2
    assert "must return an ExperimentConfig, received Config, whose trainer is a Config: a config of" in outcome.err


def test_two_alternatives_on_one_command_line_are_refused(everstep):
    done = everstep("config", "mnist/mlp", "trainer.epochs=1", "trainer.train_steps=500")
    assert done.code == 2
    assert "trainer.epochs: received 1, but train_steps=500 is given, too, and they are alternatives" in done.err
    assert "(from override 'trainer.epochs=1')" in done.err


def test_a_schedule_follows_the_length_of_training(everstep):
    shown = listing(everstep("config", "mnist/mlp", "trainer.train_steps=500"))
    assert shown["        decay_steps"] == ("500", "follows trainer.train_steps")
    key = LENGTH
    assert (
        f"{key}: 4000 -> 500  # follows trainer.train_steps"
        in everstep("config", "mnist/mlp", "trainer.train_steps=500", "--diff", "factory").out
    )
    shown = listing(everstep("config", "mnist/mlp", "trainer.train_steps=500", f"{key}=9"))
    assert shown["        decay_steps"] == ("9", f"override '{key}=9'")
    assert listing(everstep("config", "mnist/mlp", "trainer.epochs=2"))["        decay_steps"][0] == "null"
