"""People who move over: every item of Model Garden's is answered, and a configuration it wrote can be read."""

import dataclasses
import re
from pathlib import Path

import pytest

from everstep.config import Config, dialect, get_exp_config, load_entry_points
from everstep.config.base import declined_by
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.model_garden.absl_flags import DECLINED
from everstep.task.optim import config as optimizers
from everstep.task.optim.config import ClippingConfig
from everstep.testing.problems import raises_problem

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from" / "model-garden.md").read_text("utf-8")

GROUPS = {"T": 18, "R": 6, "C": 19, "M": 12, "TR": 8, "O": 16, "K": 10, "B": 5, "A": 6, "V": 3, "E": 2, "S": 5}
GROUPS |= {"P": 12, "D": 7, "G": 5, "X": 5}
ITEMS = {f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)} | {"M9b"}
WEAKNESSES = {f"W{number}" for number in range(1, 45)}

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
        **{"trainer_type": None, "task_sampler": None, "train_steps": 10, "use_orbit": True},
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


# -- the page ------------------------------------------------------------------------------------------------------


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


# -- a configuration that was written there --------------------------------------------------------------------------


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
            assert re.fullmatch(rf"{name}: received 77, but .{{15,}}: remove it", text), (section, text)


def test_every_field_of_theirs_is_here_or_declined():
    found = {**WRITTEN, "…_data": WRITTEN["task"]["train_data"]}
    for section, config in sections(experiment()).items():
        known = {*config._names(), *declined_by(type(config)), "train_data"}
        assert set(found[section]) <= known


# -- experiment files in the shapes that people write there ------------------------------------------------------------

FILES = {
    "everything has a name": """
runtime: {distribution_strategy: 'tpu', mixed_precision_dtype: 'bfloat16', tpu_enable_xla_dynamic_padder: false}
trainer:
  optimizer_config:
    ema: {average_decay: 0.9999, trainable_weights_only: false, name: ExponentialMovingAverage}
    learning_rate:
      cosine: {alpha: 0.0, decay_steps: 93600, initial_learning_rate: 0.003, name: CosineDecay, offset: 0}
      type: cosine
    optimizer:
      adamw:
        {amsgrad: false, beta_1: 0.9, beta_2: 0.999, epsilon: 1.0e-07, gradient_clip_norm: 1.0, name: AdamWeightDecay,
         include_in_weight_decay: .*(kernel|weight):0$, exclude_from_weight_decay: null, weight_decay_rate: 0.3}
      type: adamw
    warmup:
      linear: {name: linear, warmup_learning_rate: 0, warmup_steps: 10000}
      type: linear
  checkpoint_interval: 312
  steps_per_loop: 312
  summary_interval: 312
  train_steps: 93600
  validation_interval: 312
  validation_steps: 12
""",
    "polynomial, and no experiment of one machine": """
runtime:
  distribution_strategy: multi_worker_mirrored
  all_reduce_alg: nccl
  num_gpus: 8
  mixed_precision_dtype: float16
  loss_scale: dynamic
trainer:
  optimizer_config:
    learning_rate:
      polynomial: {cycle: false, decay_steps: 500000, end_learning_rate: 0.0, initial_learning_rate: 1.0e-3,
                   name: PolynomialDecay, power: 1.0}
      type: polynomial
    optimizer: {lamb: {name: LAMB, exclude_from_weight_decay: [LayerNorm, layer_norm, bias]}, type: lamb}
    warmup: {polynomial: {name: polynomial, power: 1, warmup_steps: 10000}, type: polynomial}
  max_to_keep: 10
  recovery_max_trials: 3
  train_tf_function: true
  train_tf_while_loop: true
""",
    "tuples": """
trainer:
  optimizer_config:
    learning_rate:
      type: step_cosine_with_offset
      step_cosine_with_offset: {values: !!python/tuple [0.0001, 0.00005], boundaries: !!python/tuple [0, 500000]}
    optimizer: {type: sgd, sgd: {momentum: 0.9, name: SGD}}
""",
    "stepwise": """
trainer:
  best_checkpoint_eval_metric: AP
  best_checkpoint_export_subdir: best_ckpt
  best_checkpoint_metric_comp: higher
  optimizer_config:
    learning_rate:
      stepwise: {boundaries: [5, 9], name: PiecewiseConstantDecay, values: [.3, .03, .003]}
      type: stepwise
    optimizer: {rmsprop: {name: RMSprop, rho: 0.9, momentum: 0.9, epsilon: 0.002}, type: rmsprop}
""",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_sections_of_experiment_files_are_accepted(text):
    config = ExperimentConfig()
    config.override(dialect.load(text))
    config.validate()
    assert "name:" not in config.to_yaml().partition("trainer:")[2].partition("early_stopping:")[0]


def test_what_such_files_say_is_what_holds():
    config = ExperimentConfig()
    config.override(dialect.load(FILES["everything has a name"]))
    assert config.trainer.optimizer_config.optimizer.get().include_in_weight_decay == [".*(kernel|weight):0$"]
    config.override(dialect.load(FILES["tuples"]))
    assert config.trainer.optimizer_config.learning_rate.get().boundaries == [0, 500000]


@pytest.mark.parametrize(
    ("tree", "fields"),
    [
        (
            {"optimizer": {"sgd": {"name": 3}}},
            {"key": "trainer.optimizer_config.optimizer.sgd.name", "received": 3, "reason": "but it is a label"},
        ),
        (
            {"optimizer": {"sgd": {"nmae": "SGD"}}},
            {"key": "trainer.optimizer_config.optimizer.sgd.nmae", "received": "SGD", "reason": "unknown key"},
        ),
        ({"name": "mine"}, {"key": "trainer.optimizer_config.name", "received": "mine", "reason": "unknown key"}),
        (
            {"optimizer": {"adamw": {"include_in_weight_decay": 3}}},
            {
                "key": "trainer.optimizer_config.optimizer.adamw.include_in_weight_decay",
                "received": 3,
                "reason": r"expected list\[str\] \| None",
            },
        ),
        (
            {"optimizer": {"type": "sgd_torch"}},
            {
                "key": "trainer.optimizer_config.optimizer.type",
                "received": "sgd_torch",
                "reason": "unknown type",
                "remedy": "must be registered",
            },
        ),
    ],
)
def test_what_is_wrong_in_such_files_stays_an_error(tree, fields):
    with raises_problem(**fields):
        ExperimentConfig().override({"trainer": {"optimizer_config": tree}})


def test_an_optimizer_that_a_project_brings_along_is_registered_here_too(monkeypatch):
    """As YOLO's files have it, whose project registers it there."""
    monkeypatch.setattr(optimizers, "_registered", {})
    optimizers._extended.cache_clear()

    @dataclasses.dataclass
    class TorchConfig(ClippingConfig):
        momentum: float = 0.937
        warmup_steps: int = 1000

    optimizers.register_optimizer("sgd_torch", TorchConfig)(lambda learning_rate, **fields: None)
    config = ExperimentConfig()
    torch = {"warmup_steps": 5544, "global_clipnorm": 10, "name": "SGD"}
    config.override({"trainer": {"optimizer_config": {"optimizer": {"type": "sgd_torch", "sgd_torch": torch}}}})
    assert config.trainer.optimizer_config.optimizer.get().warmup_steps == 5544
    optimizers._extended.cache_clear()
