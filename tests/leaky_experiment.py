"""A user's experiment that needs secrets and is careless with them.

It logs them, warns about them, has one in the name of a metric, and fails with them in its message: nothing of that
may reach a file or a screen. What it received it notes down as digests, to show that it had the real values.
"""

import dataclasses
import hashlib
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import gin

import everstep
from everstep.errors import UsageError

DEFAULT_KEY = "factory-5c1f7e2a9b"
DEFAULT_SOURCE = "postgres://trainer:factory-8d2e4f6a1c@db.example.com/train"


@dataclasses.dataclass
class LeakyConfig(everstep.TaskConfig):
    password: str = ""
    """Of the database."""
    token: str = ""
    """Of the registry."""
    source: str = DEFAULT_SOURCE
    """Where the data is."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """Free text."""
    services: dict[str, Any] = dataclasses.field(default_factory=lambda: {"own": {"api_key": DEFAULT_KEY}})
    """Settings of other systems, by name."""
    num_tokens: int = 8192
    """No secret."""
    cls_token: str = "CLASSIFY-0"
    """No secret."""
    fail_at: int = -1
    """The batch at which the data is lost."""

    def validate(self) -> None:
        """Checks the number of tokens, and says too much."""
        super().validate()
        if self.num_tokens < 1:
            raise UsageError(f"num_tokens: {self.password!r} allows more than {self.num_tokens}")


@gin.configurable
def login(password: str = "") -> str:
    """Returns what gin says."""
    return password


@everstep.register_task(LeakyConfig)
def make_task(config: LeakyConfig, **kwargs: Any) -> Any:
    """Imports Keras only when there is something to train."""
    import keras
    import numpy as np

    class LeakyTask(everstep.Task):
        def build_model(self) -> keras.Model:
            _say_everything(config)
            return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")

        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            def batches() -> Any:
                for count in range(8):
                    if count == config.fail_at and params.is_training:
                        _fail(config)
                    yield np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

            return batches

        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
            return keras.ops.mean(keras.ops.square(labels - model_outputs))

        def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
            return True

        def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Any:
            return {f"distance to {config.source}": 0.5}

    return LeakyTask(config, **kwargs)


@everstep.register_experiment("leaky")
def leaky() -> everstep.ExperimentConfig:
    """Talks too much."""
    trainer = {"train_steps": 8, "steps_per_loop": 2, "validation_interval": 4, "checkpoint_interval": 2}
    return everstep.ExperimentConfig(task=LeakyConfig(), trainer=everstep.TrainerConfig(trainer))


@everstep.register_experiment("crash")
def crash() -> everstep.ExperimentConfig:
    """Cannot even be composed."""
    raise RuntimeError(f"no access with {os.environ['REGISTRY_TOKEN']}")


def received(config: LeakyConfig) -> list[str]:
    """Every text that the task was given."""
    found: list[str] = [login(), os.environ["REGISTRY_TOKEN"]]
    todo: list[Any] = [config.as_dict()]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            todo += value
        elif isinstance(value, str):
            found.append(value)
    return found


def _say_everything(config: LeakyConfig) -> None:
    texts = received(config)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    Path("received.json").write_text(json.dumps(digests))
    logger = logging.getLogger("leaky")
    logger.warning("connecting with %s", config)
    try:
        raise PermissionError("\n".join(texts))
    except PermissionError:
        logger.exception("login of %s failed", texts[0])
    for text in texts:
        warnings.warn(f"{text} is about to expire", stacklevel=1)


def _fail(config: LeakyConfig) -> None:
    try:
        raise PermissionError(f"{config.password} {config.token}")
    except PermissionError as error:
        raise ConnectionError(f"lost {config.source}: {' '.join(received(config))}") from error
