"""`ExperimentConfig`: task, trainer and runtime; what a registered factory returns. Imports no Keras."""

import dataclasses
import enum
import os
from collections.abc import Callable
from typing import Any, NoReturn, Self

from everstep.config import Config, apply_layers, get_exp_config, read_sources
from everstep.engine import RuntimeConfig
from everstep.errors import UsageError, nearest
from everstep.loop import TrainerConfig
from everstep.task import TaskConfig


class Mode(enum.StrEnum):
    """What `run_experiment` does; the names as strings are accepted everywhere.

    Raises:
      UsageError: `Mode(name)` of an unknown name; lists the nearest ones.
    """

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    TRAIN_AND_POST_EVAL = "train_and_post_eval"
    CONTINUOUS_EVAL = "continuous_eval"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = nearest(str(value), [mode.value for mode in cls])
        raise UsageError("unknown mode", key="mode", received=value, remedy=known)

    @property
    def trains(self) -> bool:
        """Whether this mode trains."""
        return self not in (Mode.EVAL, Mode.CONTINUOUS_EVAL)

    @property
    def evaluates(self) -> bool:
        """Whether this mode evaluates."""
        return self is not Mode.TRAIN


@dataclasses.dataclass
class ExperimentConfig(Config):
    """The configuration of a run.

    @everstep.register_experiment("mnist/small")
    def small():
        return ExperimentConfig(task=MnistConfig(hidden=16), trainer=TrainerConfig(train_steps=500))
    """

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    """What is learned, from which data."""
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    """How long to train, with which optimizer, and when to log, evaluate and save."""
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    """Backend, devices, precision and seed."""

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the configuration in a file: of the experiment that it names, else of this class.

        A stored `config.yaml` names its experiment, whose registered function returns the classes that a file cannot
        contain; the file's values are applied to what it returns. A module of your own that registers the experiment
        has to be imported before; `imports` and `gin` in the file are used by the command line only.

        Raises:
          UsageError: The file cannot be read, the experiment is not registered, or values are invalid, each with its
            line.
        """
        config = read_experiment(path, otherwise=cls)
        if not isinstance(config, cls):
            reason = f"expected {cls.__name__}, but its experiment has {type(config).__name__}"
            raise UsageError(reason, key=str(path))
        return config


def with_learning_rate_length(params: ExperimentConfig) -> ExperimentConfig:
    """Returns a configuration whose learning-rate schedule and warmup have lengths, if the number of steps is known."""
    return params.replace(trainer=params.trainer.with_learning_rate_length())


def read_experiment(path: str | os.PathLike[str], otherwise: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    """Returns the experiment that a file names, with the file's values, as `ExperimentConfig.from_yaml` does.

    Args:
      path: The file.
      otherwise: Creates the config if the file names no experiment.

    Raises:
      UsageError: As `ExperimentConfig.from_yaml`.
    """
    found = read_sources([path])
    named = found.header["experiment"]
    return apply_layers(_registered(*named[-1]) if named else otherwise(), found.files)


def _registered(name: str, origin: str) -> ExperimentConfig:
    try:
        config = get_exp_config(name)
    except UsageError as error:
        problems = [dataclasses.replace(p, key=p.key or "experiment", origin=origin) for p in error.problems]
        raise UsageError(problems) from None
    return as_experiment(name, config)


def as_experiment(name: str, config: Config) -> Any:
    """Returns what an experiment's function returned: an ExperimentConfig, or another config with the same sections.

    Raises:
      UsageError: A section is missing, or is of another class.
    """
    if isinstance(config, ExperimentConfig):
        return config
    parts: dict[str, type[Config]] = {"task": Config, "trainer": TrainerConfig, "runtime": RuntimeConfig}
    for key, cls in parts.items():
        if not isinstance(config.get(key), cls):
            found = f"whose {key} is a {type(config.get(key)).__name__}" if key in config else f"which has no {key}"
            raise UsageError(
                f"must return an ExperimentConfig, received {type(config).__name__}, {found}",
                key=f"experiment {name!r}",
                remedy="a config of another class needs task (a Config), trainer (a TrainerConfig) and runtime (a "
                "RuntimeConfig)",
            )
    return config
