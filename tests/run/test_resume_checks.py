"""What a resumed run may change: its configuration key by key, and its data."""

import dataclasses
import types
from typing import ClassVar

import numpy as np
import pytest

import everstep as es
from everstep.config import Config, dialect
from everstep.config.difference import ABSENT, Change
from everstep.config.key_paths import find_key, leaves
from everstep.data import ArrayStream
from everstep.data.stream import Stream
from everstep.data.wrappers import MappedStream
from everstep.errors import UsageError, renamed_keys
from everstep.run.resume_checks import (
    ChangeRefused,
    accepted_changes,
    allowed_in_python,
    as_records,
    check_data,
    data_fingerprints,
    report_loop,
)
from everstep.task.multitask.streams import JointStream
from everstep.testing.problems import raises_problem

# Every key of an experiment's own sections, and another value for it.
ACCEPTED = {
    "task.init_checkpoint": "weights.keras",
    "task.validation_data.input_path": "other/*",
    "task.validation_data.global_batch_size": 7,
    "task.validation_data.is_training": False,
    "task.validation_data.drop_remainder": True,
    "task.validation_data.shuffle_buffer_size": 3,
    "task.validation_data.seed": 3,
    "task.validation_data.repeat": True,
    "task.validation_data.prefetch_buffer_size": 3,
    "task.validation_data.tfds_name": "mnist",
    "task.validation_data.tfds_split": "train",
    "task.validation_data.tfds_data_dir": "elsewhere",
    "task.validation_data.tfds_as_supervised": True,
    "task.validation_data.tfds_skip_decoding_feature": "image",
    "task.validation_data.cache": True,
    "task.validation_data.cycle_length": 3,
    "task.validation_data.block_length": 3,
    "task.validation_data.sharding": False,
    "task.validation_data.deterministic": True,
    "task.validation_data.ram_budget": 3,
    "task.validation_data.autotune_algorithm": "HILL_CLIMB",
    "task.train_data.deterministic": True,
    "task.train_data.ram_budget": 3,
    "task.train_data.autotune_algorithm": "HILL_CLIMB",
    "task.train_data.prefetch_buffer_size": 3,
    "task.name": "mine",
    "trainer.train_steps": 120,
    "trainer.epochs": 2.0,
    "trainer.steps_per_loop": 50,
    "trainer.summary_interval": 200,
    "trainer.checkpoint_interval": "1 epoch",
    "trainer.checkpoint_seconds": 60.0,
    "trainer.max_to_keep": 2,
    "trainer.keep_steps": 100,
    "trainer.keep_seconds": 60.0,
    "trainer.keep_ladder": "2GB",
    "trainer.keep_best": 1,
    "trainer.best_checkpoint_eval_metric": "accuracy",
    "trainer.best_checkpoint_metric_comp": "lower",
    "trainer.best_checkpoint_export_subdir": "best",
    "trainer.early_stopping.metric": "accuracy",
    "trainer.early_stopping.mode": "higher",
    "trainer.early_stopping.patience": 5,
    "trainer.early_stopping.min_delta": 0.1,
    "trainer.save_failure": "continue",
    "trainer.loss_upper_bound": 5.0,
    "trainer.recovery_begin_steps": 5,
    "trainer.recovery_max_trials": 3,
    "trainer.tracking.mlflow": True,
    "trainer.tracking.mlflow_uri": "sqlite:///other.db",
    "trainer.tracking.mlflow_experiment": "mine",
    "trainer.tracking.wandb": True,
    "trainer.tracking.wandb_project": "mine",
    "trainer.tracking.wandb_entity": "me",
    "trainer.tracking.wandb_mode": "offline",
    "trainer.tracking.jsonl": True,
    "trainer.tracking.samples": 4,
    "trainer.tracking.norms": True,
    "trainer.tracking.histogram_interval": 50,
    "trainer.tracking.system_seconds": 10.0,
    "trainer.profile": "20..30",
    "trainer.sanity_validation_steps": 2,
    "trainer.stop_at": "07:00",
    "task.validation_data.limit_batches": 2,
    "runtime.cuda_graph": False,
    "runtime.stop_signals": ["USR1"],
    "runtime.requeue_exit_code": 85,
    "runtime.preemption_notice": "gce",
    "trainer.validation_steps": 3,
    "trainer.validation_interval": 77,
    "trainer.validation_summary_subdir": "eval",
    "trainer.continuous_eval_timeout": 5,
}
REFUSED = {
    "task.model": {"units": 3},
    "task.train_data.input_path": "other/*",
    "task.train_data.global_batch_size": 7,
    "task.train_data.is_training": True,
    "task.train_data.drop_remainder": True,
    "task.train_data.shuffle_buffer_size": 3,
    "task.train_data.seed": 3,
    "task.train_data.limit_batches": 3,
    "trainer.overfit_batches": 2,
    "task.train_data.repeat": False,
    "task.train_data.tfds_name": "mnist",
    "task.train_data.tfds_split": "train",
    "task.train_data.tfds_data_dir": "elsewhere",
    "task.train_data.tfds_as_supervised": True,
    "task.train_data.tfds_skip_decoding_feature": "image",
    "task.train_data.cache": True,
    "task.train_data.cycle_length": 3,
    "task.train_data.block_length": 3,
    "task.train_data.sharding": False,
    "trainer.train_actions": ["mine"],
    "trainer.eval_actions": ["mine"],
    "trainer.optimizer_config.optimizer.type": "sgd",
    "trainer.optimizer_config.optimizer.adam.clipnorm": 1.0,
    "trainer.optimizer_config.optimizer.adam.clipvalue": 1.0,
    "trainer.optimizer_config.optimizer.adam.global_clipnorm": 1.0,
    "trainer.optimizer_config.optimizer.adam.beta_1": 0.8,
    "trainer.optimizer_config.optimizer.adam.beta_2": 0.8,
    "trainer.optimizer_config.optimizer.adam.epsilon": 0.1,
    "trainer.optimizer_config.optimizer.adam.amsgrad": True,
    "trainer.optimizer_config.learning_rate.type": "cosine",
    "trainer.optimizer_config.learning_rate.constant.learning_rate": 0.1,
    "trainer.optimizer_config.warmup.type": "linear",
    "trainer.optimizer_config.layer_rates": {"decay": 0.9},
    "trainer.optimizer_config.ema": {"average_decay": 0.9},
    "trainer.optimizer_config.gradient_accumulation_steps": 2,
    "runtime.backend": "jax",
    "runtime.distribution_strategy": "mirrored",
    "runtime.num_gpus": 2,
    "runtime.mesh": {"data": 2},
    "runtime.sharding": "fsdp",
    "runtime.all_reduce_alg": "nccl",
    "runtime.tpu": "local",
    "runtime.seed": 1,
    "runtime.mixed_precision_dtype": "bfloat16",
    "runtime.loss_scale": 2.0,
    "runtime.enable_xla": True,
    "runtime.deterministic": False,
    "runtime.remat": "full",
    "runtime.float8": True,
    "runtime.xla_preset": "latency",
}


def experiment(**runtime):
    return es.ExperimentConfig(runtime=es.RuntimeConfig(backend="tensorflow", **runtime))


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def store(directory, config):
    """Writes what a run has used so far."""
    (directory / "config.yaml").write_text("experiment: some/name\n" + config.to_yaml(), "utf-8")
    return directory


def test_every_key_is_decided_upon():
    known = {path for path, _ in leaves(experiment().as_dict())}
    assert known == set(ACCEPTED) | set(REFUSED) | {"trainer.tracking.others"}


def test_nothing_changed(tmp_path):
    assert accepted_changes(store(tmp_path, experiment()), experiment()) == []


@pytest.mark.parametrize("path", ACCEPTED)
def test_accepted(path, tmp_path):
    old, new = experiment(), experiment()
    new.override(nested(path, ACCEPTED[path]))
    changes = accepted_changes(store(tmp_path, old), new)
    assert Change(path, find_key(old, path), ACCEPTED[path]) in changes
    back = accepted_changes(store(tmp_path, new), old)
    assert Change(path, ACCEPTED[path], find_key(old, path)) in back


def test_trackers_may_come_and_go(tmp_path):
    old, new = experiment(), experiment()
    new.override({"trainer": {"tracking": {"others": {"mine": {"channel": 3}}}}})
    (change,) = accepted_changes(store(tmp_path, old), new)
    assert (change.path, change.new) == ("trainer.tracking.others.mine.channel", 3)


@pytest.mark.parametrize("path", REFUSED)
def test_refused_and_allowed(path, tmp_path):
    old, new = experiment(), experiment()
    new.override(nested(path, REFUSED[path]))
    store(tmp_path, old)
    with pytest.raises(ChangeRefused) as error:
        accepted_changes(tmp_path, new)
    assert path in error.value.keys
    assert f"--allow-change {path}" in str(error.value.problems[-1])
    section = path.rpartition(".")[0]
    assert accepted_changes(tmp_path, new, [section])
    with pytest.raises(ChangeRefused):
        accepted_changes(tmp_path, new, ["trainer.train_steps"])
    with pytest.raises(ChangeRefused):
        accepted_changes(store(tmp_path, new), old)


def test_the_message_names_everything_at_once(tmp_path):
    old, new = experiment(), experiment(seed=3)
    new.override({"task": {"train_data": {"global_batch_size": 16}}, "trainer": {"train_steps": 120}})
    with pytest.raises(ChangeRefused) as error:
        accepted_changes(store(tmp_path, old), new)
    assert str(error.value).splitlines() == [
        "task.train_data.global_batch_size: 32 -> 16",
        "runtime.seed: 0 -> 3",
        f"this would alter what the run in {str(tmp_path)!r} computes: use another directory for a new run, "
        "restore the former values, or allow the change: "
        "--allow-change task.train_data.global_batch_size --allow-change runtime.seed "
        '(in Python: allow_change=["task.train_data.global_batch_size", "runtime.seed"])',
    ]
    with pytest.raises(ChangeRefused) as error:
        accepted_changes(tmp_path, new, ["task"])
    assert error.value.keys == ["runtime.seed"]
    assert [change.path for change in accepted_changes(tmp_path, new, ["task", "runtime.seed"])] == [
        "task.train_data.global_batch_size",
        "trainer.train_steps",
        "runtime.seed",
    ]


def test_a_key_is_no_prefix_of_a_longer_name(tmp_path):
    new = experiment()
    new.override({"task": {"train_data": {"seed": 1}}})
    store(tmp_path, experiment())
    for key in ("task.model", "trainer", "runtime"):
        with pytest.raises(ChangeRefused) as error:
            accepted_changes(tmp_path, new, [key])
        assert error.value.keys == ["task.train_data.seed"]


def test_an_entry_point_renames_the_keys(tmp_path):
    with pytest.raises(ChangeRefused) as error, renamed_keys({"runtime.seed": "seed"}):
        accepted_changes(store(tmp_path, experiment()), experiment(seed=3))
    assert error.value.keys == ["seed"]
    assert str(error.value.problems[-1]).endswith('--allow-change seed (in Python: allow_change=["seed"])')


def test_another_branch_of_a_choice(tmp_path):
    new = experiment()
    new.override({"trainer": {"optimizer_config": {"optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}}}}})
    with pytest.raises(ChangeRefused) as error:
        accepted_changes(store(tmp_path, experiment()), new)
    assert error.value.keys == [f"trainer.optimizer_config.optimizer.{name}" for name in ("type", "adam", "sgd")]
    assert accepted_changes(tmp_path, new, ["trainer.optimizer_config"])


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("runtime.bakend", "'runtime.backend'"), ("optimizer_config", "'trainer.optimizer_config"), ("", "known: ")],
)
def test_allowing_an_unknown_key(key, nearest, tmp_path):
    with pytest.raises(UsageError) as error:
        accepted_changes(store(tmp_path, experiment()), experiment(), [key])
    assert (error.value.key, error.value.received) == ("allow_change", key)
    assert nearest in error.value.remedy


# -- users' own fields -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Head(Config):
    units: int = 3
    shape: tuple[int, ...] = (1, 2)


@dataclasses.dataclass
class MyTask(es.TaskConfig):
    _may_change: ClassVar[frozenset[str]] = frozenset({"report_every", "preview"})

    model: Config | None = Head()
    heads: list[Head] = [Head()]
    free: Config | None = None
    table: dict[str, float] = {"a": 1.0}
    weight: dict[int, float] | None = None
    rate: float = 1.0
    report_every: int = 10
    preview: Head = Head()


def mine(**task):
    config = es.ExperimentConfig(task=MyTask())
    config.override({"task": task})
    return config


def refused(directory, old, new):
    """Returns the changes that are refused, as text."""
    with pytest.raises(ChangeRefused) as error:
        accepted_changes(store(directory, old), new)
    return list(map(str, error.value.problems[:-1]))


@pytest.mark.parametrize("old", [{}, {"free": {"a": {"b": 1}}, "weight": {0: 0.5}, "heads": [{"units": 5}, {}]}])
def test_own_fields_unchanged(old, tmp_path):
    assert accepted_changes(store(tmp_path, mine(**old)), mine(**old)) == []


def test_own_fields_are_refused_unless_the_class_allows_them(tmp_path):
    new = mine(rate=2.0, report_every=1, preview={"units": 9}, model={"shape": [2, 2]})
    assert refused(tmp_path, mine(), new) == ["task.model.shape: [1, 2] -> [2, 2]", "task.rate: 1.0 -> 2.0"]
    changes = accepted_changes(tmp_path, new, ["task.rate", "task.model"])
    assert {change.path for change in changes} > {"task.report_every", "task.preview.units"}
    new.task.name = "inherited: may change as well"
    accepted_changes(tmp_path, new, ["task.rate", "task.model"])


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({}, {"free": {"a": 1}}, ["task.free: null -> {a: 1}"]),
        ({"free": {"a": 1}}, {"free": {"a": 1, "b": 2}}, ["task.free.b: (absent) -> 2"]),
        ({"free": {"a": 1, "b": 2}}, {"free": {"a": 1}}, ["task.free.b: 2 -> (absent)"]),
        ({}, {"table": {"b": 2.0}}, ["task.table.b: (absent) -> 2.0"]),
        ({"table": {"b": 2.0}}, {}, ["task.table.b: 2.0 -> (absent)"]),
        ({"weight": {0: 1.0}}, {"weight": {0: 2.0}}, ["task.weight.0: 1.0 -> 2.0"]),
        ({}, {"heads": [{"units": 3}, {"units": 4}]}, ["task.heads: "]),
        ({}, {"heads": [{"units": 4}]}, ["task.heads: "]),
    ],
)
def test_values_that_are_trees(old, new, lines, tmp_path):
    found = refused(tmp_path, mine(**old), mine(**new))
    assert len(found) == len(lines)
    assert all(line.startswith(wanted) for line, wanted in zip(found, lines, strict=True))


def edited(directory, edit):
    """Stores a configuration as an older version of the code would have written it."""
    tree = dialect.load(mine().to_yaml())
    edit(tree["task"])
    (directory / "config.yaml").write_text(dialect.dump(tree), "utf-8")
    return directory


def test_a_key_that_there_is_no_more(tmp_path):
    edited(tmp_path, lambda task: task.update(dropout=0.5))
    with raises_problem(key="task.dropout", reason=r"0\.5 -> \(absent\)"):
        accepted_changes(tmp_path, mine())
    assert accepted_changes(tmp_path, mine(), ["task.dropout"]) == [Change("task.dropout", 0.5, ABSENT)]


def test_a_new_key_has_changed_unless_it_has_its_default(tmp_path):
    edited(tmp_path, lambda task: [task.pop(name) for name in ("rate", "preview", "table", "heads")])
    assert accepted_changes(tmp_path, mine()) == []
    for task, key in (
        ({"rate": 0.5}, "task.rate"),
        ({"table": {"b": 2}}, "task.table.b"),
        ({"heads": []}, "task.heads"),
    ):
        with raises_problem(key=key, reason=r"\(absent\) -> "):
            accepted_changes(tmp_path, mine(**task))


def test_a_value_that_no_longer_fits(tmp_path):
    edited(tmp_path, lambda task: task.update(rate="fast", heads=[{"units": "many", "size": 2}]))
    with pytest.raises(UsageError) as error:
        accepted_changes(tmp_path, mine())
    lines = list(map(str, error.value.problems[:-1]))
    assert lines == ["task.heads[0].units: many -> 3", "task.heads[0].size: 2 -> (absent)", "task.rate: fast -> 1.0"]


def test_an_int_for_a_float_is_the_same(tmp_path):
    edited(tmp_path, lambda task: task.update(rate=1, table={"a": 1}))
    assert accepted_changes(tmp_path, mine()) == []


def test_what_was_redacted_is_not_compared(tmp_path):
    edited(tmp_path, lambda task: task.update(name="***", free={"token": "***"}))
    assert accepted_changes(tmp_path, mine(free={"token": "abc"})) == []


def test_the_configuration_is_left_as_it_is(tmp_path):
    new = mine(rate=2.0)
    new.lock()
    before = new.to_yaml()
    accepted_changes(store(tmp_path, mine()), new, ["task"])
    assert new.to_yaml() == before


# -- a run whose configuration is not known ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ("experiment: some/name\n", "is empty"),
        ("task: {", "line 1"),
        ("[1, 2]", "expected keys with values"),
    ],
)
def test_unknown_configuration_needs_everything_allowed(text, reason, tmp_path):
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    for allowed in ([], ["task", "trainer"], ["runtime.seed"]):
        with pytest.raises(UsageError) as error:
            accepted_changes(tmp_path, experiment(seed=3), allowed)
        assert reason in error.value.reason
        assert "--allow-change task --allow-change trainer --allow-change runtime" in error.value.remedy
        with pytest.raises(ChangeRefused) as error, allowed_in_python():
            accepted_changes(tmp_path, experiment(seed=3), allowed)
        assert error.value.remedy.endswith('allow_change=["task", "trainer", "runtime"]')
        assert "--allow-change" not in error.value.remedy
    changes = accepted_changes(tmp_path, experiment(seed=3), ["task", "trainer", "runtime"])
    assert Change("runtime.seed", ABSENT, 3) in changes


def test_records():
    changes = [Change("a.b", 60, 120), Change("a.c", ABSENT, None), Change("a.d", (1, 2), ABSENT)]
    assert as_records(changes) == [
        {"key": "a.b", "old": 60, "new": 120},
        {"key": "a.c", "new": None},
        {"key": "a.d", "old": (1, 2)},
    ]


# -- the data ----------------------------------------------------------------------------------------------------------


def prints(first, second):
    parts = {"one": ArrayStream({"x": np.full((4, 1), first)}, 2), "two": ArrayStream(np.full((4, 1), second), 2)}
    stream = JointStream({**parts, "two": MappedStream(parts["two"], lambda batch: batch)})
    return data_fingerprints(types.SimpleNamespace(train_stream=stream, validation_stream=None))


def test_parts_of_a_stream_are_compared():
    before = prints(1.0, 2.0)
    assert {"kind", "one/x", "two", "two/kind"} <= set(before["train"])
    check_data(before, prints(1.0, 2.0), [])
    with pytest.raises(ChangeRefused) as error:
        check_data(before, prints(1.0, 3.0), [])
    assert (error.value.keys, error.value.reason) == (["data"], "array two has other content")
    check_data(before, prints(5.0, 2.0), ["data"])


class Opaque(Stream):
    """Batches that only the stream knows, and its files, if it has some."""

    def __init__(self, files=(), batches=3):
        super().__init__(repeat=True, batches_per_epoch=batches)
        self.names = files

    @property
    def files(self):
        return self.names

    def open(self, epoch, batch):
        return iter(())


def opaque(batch, files=()):
    trainer = types.SimpleNamespace(train_stream=Opaque(files), validation_stream=None, train_example=batch)
    return data_fingerprints(trainer)


def test_a_first_batch_identifies_opaque_data():
    before, after = opaque({"x": np.zeros(2)}), opaque({"x": np.ones(2)})
    assert before["train"]["first_batch"]["x"] != after["train"]["first_batch"]["x"]
    check_data(before, after, [])  # the shuffling may be unseeded: no reason to refuse


def test_other_kinds_and_lengths_of_streams_are_named():
    class Other(Opaque):
        def __init__(self):
            super().__init__(batches=4)

    before = opaque(np.zeros(2))
    trainer = types.SimpleNamespace(train_stream=Other(), validation_stream=None, train_example=np.zeros(2))
    with pytest.raises(ChangeRefused) as error:
        check_data(before, data_fingerprints(trainer), [])
    assert [problem.reason for problem in error.value.problems[:-1]] == [
        "batches an epoch: 3 -> 4",
        "kind of stream: Opaque -> Other",
    ]
    with pytest.raises(ChangeRefused) as error:
        check_data(prints(1.0, 2.0), before, [])
    assert {problem.reason for problem in error.value.problems[:-1]} >= {
        "kind of stream: JointStream -> Opaque",
        "array one/x is gone",
        "array two is gone",
        "kind of stream two: MappedStream -> (absent)",
    }


def test_the_content_of_files_is_compared(tmp_path):
    file = tmp_path / "train-0.tfrec"
    file.write_bytes(b"abc")
    before = opaque(np.zeros(2), [str(file)])
    assert before["train"]["files"]["train-0.tfrec"]["bytes"] == 3
    assert "first_batch" not in before["train"]
    file.write_bytes(b"abd")
    after = opaque(np.zeros(2), [str(file)])
    with raises_problem(ChangeRefused, key="data", reason="file train-0.tfrec has other content"):
        check_data(before, after, [])
    del before["train"]["files"]  # as an older version has recorded it
    check_data(before, after, [])


def test_another_loop_is_reported(caplog):
    report_loop({}, {"device": "gpu", "loop": "eager"})
    report_loop({"device": "gpu", "loop": "eager"}, {"device": "gpu", "loop": "eager", "reason": "such and such"})
    assert not caplog.text
    report_loop({"device": "gpu", "loop": "cuda graph"}, {"device": "gpu", "loop": "eager"})
    assert "in another way than in the last attempt: loop cuda graph -> eager" in caplog.text
    report_loop({"device": "gpu", "kind": "A100"}, {"device": "gpu", "kind": "H200"})
    assert "than in the last attempt, so the bits may differ: kind A100 -> H200" in caplog.text
