"""The device a job asked for, or a clear word that it is not there."""

import logging
import os
from typing import Any

import keras

from everstep.engine.strategy import get_distribution_strategy
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

FALLBACK = "EVERSTEP_DEVICE_FALLBACK"
"""Set to `cpu`, a job that asks for a TPU trains without one where there is none."""

_ADDRESSES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")


def choose_strategy(use_tpu: bool) -> Any:
    """Returns the strategy to train with; None for one device, which needs none.

    Raises:
      UsageError: There is no TPU, and nobody said that the job may do without.
    """
    if not use_tpu:
        return None
    address = next((os.environ[name] for name in _ADDRESSES if os.environ.get(name)), None)
    try:
        return get_distribution_strategy("tpu", tpu_address=address)
    except UsageError as error:
        if _may_fall_back():
            logger.warning("use_tpu: %s; training on the CPU instead, as %s=cpu says", _reason(error), FALLBACK)
            return None
        raise UsageError(
            f"use_tpu: received True, but {_reason(error)}; to train without one: use_tpu=False, or {FALLBACK}=cpu"
        ) from error


def make_optimizer(optimizer: Any, strategy: Any) -> Any:
    """Returns the user's optimizer: the very object where one device trains.

    A strategy wants its variables made in its scope, and those of an optimizer are made with it. There it is made
    again, of its own class with its own settings.
    """
    if strategy is None or not isinstance(optimizer, keras.Optimizer):
        return optimizer
    return type(optimizer).from_config(optimizer.get_config())


def _may_fall_back() -> bool:
    value = os.environ.get(FALLBACK, "")
    if value not in ("", "cpu"):
        raise UsageError(f"{FALLBACK}: received {value!r}; the only value is 'cpu'")
    return value == "cpu"


def _reason(error: UsageError) -> str:
    """Returns what an error says, without the key of a configuration that this user does not have."""
    text = str(error)
    return (text.partition(": ")[2] or text).replace("set runtime.tpu to its address", "set TPU_NAME to its name")
