"""People who move over: every item of Model Garden's is answered, and a configuration it wrote can be read."""

import re
from pathlib import Path

import pytest

from everstep.cli.declined_flags import DECLINED
from everstep.config import Config, get_exp_config, load_entry_points
from everstep.config.declined import declined_by
from everstep.errors import UsageError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "from-model-garden.md").read_text("utf-8")

GROUPS = {"T": 18, "R": 6, "C": 19, "M": 12, "TR": 8, "O": 16, "K": 10, "B": 5, "A": 6, "V": 3, "E": 2, "S": 5}
GROUPS |= {"P": 12, "D": 7, "G": 5, "X": 5}
ITEMS = {f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)} | {"M9b"}
WEAKNESSES = {f"W{number}" for number in range(1, 43)}

WRITTEN = {
    "runtime": {
        **{"distribution_strategy": "one_device", "enable_xla": False, "tpu": None, "num_gpus": 0},
        **{"gpu_thread_mode": None, "dataset_num_private_threads": None, "per_gpu_thread_count": 0},
        **{"worker_hosts": None, "task_index": -1, "all_reduce_alg": None, "num_packs": 1},
        **{"mixed_precision_dtype": None, "loss_scale": None, "run_eagerly": False},
        **{"batchnorm_spatial_persistent": False, "tpu_enable_xla_dynamic_padder": None},
        **{"num_cores_per_replica": 1, "default_shard_dim": -1, "use_tpu_mp_strategy": False},
    },
    "trainer": {
        **{"train_tf_while_loop": True, "train_tf_function": True, "eval_tf_function": True},
        **{"eval_tf_while_loop": False, "allow_tpu_summary": False, "preemption_on_demand_checkpoint": True},
        **{"steps_per_loop": 1000, "summary_interval": 1000, "checkpoint_interval": 1000, "max_to_keep": 5},
        **{"continuous_eval_timeout": 3600, "validation_steps": -1, "validation_interval": 1000},
        **{"best_checkpoint_export_subdir": "", "best_checkpoint_eval_metric": ""},
        **{"best_checkpoint_metric_comp": "higher", "loss_upper_bound": 1e6, "recovery_begin_steps": 0},
        **{"recovery_max_trials": 0, "validation_summary_subdir": "validation", "progressive": None},
        **{"trainer_type": None, "task_sampler": None, "train_steps": 10},
    },
    "task": {
        **{"init_checkpoint": "", "name": None, "differential_privacy_config": None, "allow_image_summary": False},
        "train_data": {
            **{"input_path": "", "tfds_name": "", "tfds_split": "", "global_batch_size": 8, "is_training": None},
            **{"drop_remainder": True, "shuffle_buffer_size": 100, "cache": False, "cycle_length": None},
            **{"block_length": 1, "ram_budget": None, "deterministic": None, "sharding": True, "seed": None},
            **{"tfds_data_dir": "", "tfds_as_supervised": False, "tfds_skip_decoding_feature": ""},
            **{"enable_tf_data_service": False, "tf_data_service_address": None, "tf_data_service_job_name": None},
            **{"enable_shared_tf_data_service_between_parallel_trainers": False, "trainer_id": None},
            **{"enable_round_robin_tf_data_service": False, "apply_tf_data_service_before_batching": False},
            **{"prefetch_buffer_size": None, "autotune_algorithm": None},
        },
    },
}
"""What Model Garden writes, its defaults; only what cannot train there either has a value that can."""


def experiment() -> Config:
    load_entry_points()
    return get_exp_config("mnist/local")


def sections(config: Config) -> dict[str, Config]:
    data = {"…_data": config.task.train_data}
    return {"runtime": config.runtime, "trainer": config.trainer, "task": config.task, **data}


def rows(heading: str = "") -> list[list[str]]:
    """Returns the cells of the tables under a heading, or of the whole page, without their heads."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else PAGE
    lines = re.findall(r"^(\|.*)\n(?!\|---)", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not row[0].startswith("---")]


# -- the page --------------------------------------------------------------------------------------------------------


def test_every_item_has_a_row_of_its_own():
    numbers = [row[0] for row in rows() if re.match(r"[A-Z]+\d", row[0])]
    assert sorted(numbers) == sorted(ITEMS | WEAKNESSES)


def test_every_row_is_answered():
    for row in rows():
        assert len(row) in (2, 3, 4), row
        assert all(row[1 : 3 if len(row) == 4 else 2]), row


def test_what_was_wrong_is_shown_by_tests_and_pages_that_exist():
    for number, *_, shown in rows("What was wrong there"):
        tests = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", shown)
        assert tests or re.search(r"\]\(\S+\.md\)", shown), number
        for path, name in tests:
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), f"{path}::{name}"


def test_declined_fields_are_all_on_the_page():
    fields = {name for row in rows("Fields of the configuration") for name in re.findall(r"`(\S+?)`", row[0])}
    for section, config in sections(experiment()).items():
        for name in declined_by(type(config)):
            assert f"{section}.{name}" in fields


def test_flags_are_all_on_the_page():
    answered = {row[0].strip("`") for row in rows("Flags")}
    own = {"experiment", "mode", "model_dir", "config_file", "params_override", "gin_file", "gin_params"}
    assert answered == {f"--{name}" for name in own | set(DECLINED)}


# -- a configuration that was written there ----------------------------------------------------------------------------


def test_what_it_writes_can_be_read():
    config = experiment()
    config.override(WRITTEN)
    config.validate()
    assert (config.trainer.steps_per_loop, config.task.train_data.shuffle_buffer_size) == (1000, 100)
    assert "num_packs" not in config.to_yaml()


def test_other_values_are_refused_with_the_reason():
    for section, config in sections(experiment()).items():
        for name in declined_by(type(config)):
            with pytest.raises(UsageError) as error:
                config.override({name: 77})
            text = str(error.value)
            assert re.fullmatch(rf"{name}: received 77, but .{{15,}}; leave it out", text), (section, text)


def test_every_field_of_theirs_is_here_or_declined():
    found = {**WRITTEN, "…_data": WRITTEN["task"]["train_data"]}
    for section, config in sections(experiment()).items():
        known = {*config._names(), *declined_by(type(config)), "train_data"}
        assert set(found[section]) <= known
