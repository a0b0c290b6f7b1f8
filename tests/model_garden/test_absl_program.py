"""What a training program of the user's own needs, beyond what examples/train.py shows."""

import types

import gin
import pytest
from absl import flags as absl_flags

import everstep as es
from everstep.cli.options import ExperimentRequest
from everstep.cli.resolving import resolve
from everstep.config import dialect
from everstep.model_garden import absl_program
from everstep.model_garden.absl_flags import DECLINED
from everstep.testing.problems import raises_problem


def flags(**values):
    return types.SimpleNamespace(experiment="mnist/local", **values)


def test_later_files_and_overrides_win(tmp_path):
    files = []
    for number in (1, 2):
        files.append(str(tmp_path / f"{number}.yaml"))
        (tmp_path / f"{number}.yaml").write_text(f"trainer: {{train_steps: {number}, steps_per_loop: {number}}}\n")
    params = absl_program.parse_configuration(flags(config_file=files, params_override="trainer.train_steps=3"))
    assert (params.trainer.train_steps, params.trainer.steps_per_loop) == (3, 2)


def test_an_override_wins_over_the_tpu_flag_which_counts_only_if_given(tmp_path):
    (tmp_path / "a.yaml").write_text("runtime: {tpu: from-file, distribution_strategy: tpu}\n")
    files = [str(tmp_path / "a.yaml")]
    assert absl_program.parse_configuration(flags(config_file=files, tpu=None)).runtime.tpu == "from-file"
    assert absl_program.parse_configuration(flags(config_file=files, tpu="mine")).runtime.tpu == "mine"
    last = absl_program.parse_configuration(flags(config_file=files, tpu="mine", params_override="runtime.tpu=last"))
    assert last.runtime.tpu == "last"


def test_the_configuration_is_locked_unless_disabled():
    with raises_problem(key="train_steps", reason="locked"):
        absl_program.parse_configuration(flags()).trainer.train_steps = 7
    absl_program.parse_configuration(flags(), lock_return=False).trainer.train_steps = 7


def test_params_yaml_repeats_the_configuration_and_holds_no_secret(tmp_path):
    override = "trainer.tracking.mlflow_uri=https://me:hunter22x@host/,trainer.train_steps=7"
    params = absl_program.parse_configuration(flags(params_override=override))
    absl_program.serialize_config(params, tmp_path / "new" / "run")
    text = (tmp_path / "new" / "run" / "params.yaml").read_text()
    assert "hunter22x" not in text
    assert dialect.load(text)["trainer"]["train_steps"] == 7


@pytest.mark.parametrize("name", sorted(DECLINED))
def test_a_declined_flag_names_the_replacement(name):
    own = absl_flags.FlagValues()
    absl_program.define_declined(own)
    own(["train.py"])  # not given, they do nothing
    with pytest.raises(absl_flags.IllegalFlagValueError, match=f"{name}=x: is not offered: "):
        own(["train.py", f"--{name}=x"])


def test_the_operative_gin_config_is_written(tmp_path):
    @gin.configurable(module="test_program")
    def programmed_area(width=1):
        return width

    gin.clear_config()
    absl_program.save_gin_config("train", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    try:
        gin.parse_config("programmed_area.width = 3")
        assert programmed_area() == 3
        absl_program.save_gin_config("train", tmp_path / "run")
    finally:
        gin.clear_config()
    assert "programmed_area.width = 3" in (tmp_path / "run" / "operative_config.train.gin").read_text()


# -- options in place of flags -----------------------------------------------------------------------------------------


def options(**values):
    return absl_program.ParseConfigOptions(experiment="mnist/local", **values)


def test_options_in_place_of_flags(tmp_path):
    (tmp_path / "a.yaml").write_text("trainer: {train_steps: 7, steps_per_loop: 7}\n")
    given = options(config_file=[str(tmp_path / "a.yaml")], params_override="trainer.train_steps=8")
    params = absl_program.parse_configuration(given)
    assert (params.trainer.train_steps, params.trainer.steps_per_loop) == (8, 7)
    assert "tpu" in given
    assert "gpu" not in given
    with raises_problem(key="tf_data_service", received="here", reason="is not offered"):
        absl_program.parse_configuration(options(tf_data_service="here"))


def test_unknown_keys_are_skipped_without_strict_override(tmp_path, caplog):
    file = tmp_path / "newer.yaml"
    file.write_text("trainer: {train_steps: 7, newer: {a: 1}}\nextra: 1\nruntime: {num_packs: 3}\n")
    with raises_problem(key="trainer.newer", received={"a": 1}, reason="unknown key"):
        absl_program.parse_configuration(options(config_file=[str(file)]))
    lenient = options(config_file=[str(file)], params_override="trainer.other=2", strict_override=False)
    assert absl_program.parse_configuration(lenient).trainer.train_steps == 7
    skipped = "skipped keys that the experiment does not have"
    assert f"newer.yaml: {skipped}: trainer.newer, extra, runtime.num_packs" in caplog.text
    assert f"override 'trainer.other=2': {skipped}: trainer.other" in caplog.text
    with raises_problem(key="trainer.train_steps", received="x"):
        absl_program.parse_configuration(options(params_override="trainer.train_steps=x", strict_override=False))


def test_an_experiment_that_declares_no_fields(tmp_path):
    """A program that reads its values by itself; everstep's own commands need an ExperimentConfig."""

    @es.register_experiment("plain/values")
    def values():
        return es.Config({"runtime": {"tpu": "fake"}, "task": {"model": {"id": "bar"}}, "trainer": {"train_steps": -1}})

    (tmp_path / "more.yaml").write_text("task: {extra: 5}\n")
    options = absl_program.ParseConfigOptions(
        "plain/values",
        tpu="mine",
        params_override="task.model.id=new,trainer.train_steps=10,task.another=6",
        config_file=[str(tmp_path / "more.yaml")],
        strict_override=False,
    )
    params = absl_program.parse_configuration(options)
    assert (params.runtime.tpu, params.task.model.id, params.trainer.train_steps) == ("mine", "new", 10)
    assert (params.task.extra, params.task.another) == (5, 6)
    with raises_problem(key="task.another", received=6, reason="unknown key"):
        absl_program.parse_configuration(
            absl_program.ParseConfigOptions("plain/values", params_override="task.another=6")
        )
    with raises_problem(key="experiment 'plain/values'", reason="must return an ExperimentConfig"):
        resolve(ExperimentRequest(experiment="plain/values"))
