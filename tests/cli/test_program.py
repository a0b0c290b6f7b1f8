"""What a training program of one's own asks for, beyond what examples/train.py shows."""

import types

import pytest

from everstep.cli import program
from everstep.config import dialect
from everstep.errors import UsageError


def flags(**values):
    return types.SimpleNamespace(experiment="mnist/local", **values)


def test_later_ones_win(tmp_path):
    files = []
    for number in (1, 2):
        files.append(str(tmp_path / f"{number}.yaml"))
        (tmp_path / f"{number}.yaml").write_text(f"trainer: {{train_steps: {number}, steps_per_loop: {number}}}\n")
    params = program.parse_configuration(flags(config_file=files, params_override="trainer.train_steps=3"))
    assert (params.trainer.train_steps, params.trainer.steps_per_loop) == (3, 2)


def test_an_override_wins_over_the_tpu_flag_which_counts_only_if_given(tmp_path):
    (tmp_path / "a.yaml").write_text("runtime: {tpu: from-file}\n")
    files = [str(tmp_path / "a.yaml")]
    assert program.parse_configuration(flags(config_file=files, tpu=None)).runtime.tpu == "from-file"
    assert program.parse_configuration(flags(config_file=files, tpu="mine")).runtime.tpu == "mine"
    last = program.parse_configuration(flags(tpu="mine", params_override="runtime.tpu=last"))
    assert last.runtime.tpu == "last"


def test_what_is_returned_is_locked_unless_asked_otherwise():
    with pytest.raises(UsageError, match="locked"):
        program.parse_configuration(flags()).trainer.train_steps = 7
    program.parse_configuration(flags(), lock_return=False).trainer.train_steps = 7


def test_params_yaml_repeats_the_configuration_and_holds_no_secret(tmp_path):
    override = "trainer.tracking.mlflow_uri=https://me:hunter22x@host/,trainer.train_steps=7"
    params = program.parse_configuration(flags(params_override=override))
    program.serialize_config(params, tmp_path / "new" / "run")
    text = (tmp_path / "new" / "run" / "params.yaml").read_text()
    assert "hunter22x" not in text
    assert dialect.load(text)["trainer"]["train_steps"] == 7
