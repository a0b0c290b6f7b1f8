"""`tracking` of `fit`: the names of trackers, or their settings."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.errors import UsageError, kind_of, nearest, problems_under
from everstep.tracking import TrackingConfig, installed_trackers

_NAMES = {"mlflow": "mlflow", "wandb": "wandb", "jsonl": "jsonl", "json": "jsonl", "tensorboard": ""}
"""The key of `TrackingConfig` that turns a tracker on; every kept run is tracked with TensorBoard."""


def tracking_config(tracking: Any) -> TrackingConfig:
    """Returns the configuration that `tracking` stands for.

    Args:
      tracking: None; the name of a tracker, or several; a dict with keys of `TrackingConfig`; or a `TrackingConfig`.

    Raises:
      UsageError: A name or a key is unknown, a value is invalid, or a setting has no effect.
    """
    if tracking is None:
        return TrackingConfig()
    if isinstance(tracking, TrackingConfig):
        return tracking
    if isinstance(tracking, Mapping):
        return _from_settings(tracking)
    names: Any = [tracking] if isinstance(tracking, str) or not isinstance(tracking, Iterable) else list(tracking)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(
            f'expected names, such as ["mlflow", "jsonl"], or settings, such as {{"mlflow": True}}, not '
            f"{kind_of(tracking)}",
            key="tracking",
            received=tracking,
        )
    return _from_names(names)


def _from_names(names: Iterable[str]) -> TrackingConfig:
    config = TrackingConfig()
    for name in names:
        if name in _NAMES:
            config = config.replace(**({_NAMES[name]: True} if _NAMES[name] else {}))
            continue
        installed = installed_trackers()
        if name not in installed:
            remedy = nearest(name, {*_NAMES, *installed})
            raise UsageError("no tracker of that name is installed", key="tracking", received=name, remedy=remedy)
        config = config.replace(others={**config.others, name: {}})
    return config


def _from_settings(settings: Mapping[Any, Any]) -> TrackingConfig:
    spelled = {_NAMES.get(key, key) or "" if isinstance(key, str) else key: value for key, value in settings.items()}
    spelled.pop("", None)
    try:
        config = TrackingConfig.from_mapping(spelled)
        config.validate()
    except UsageError as error:
        raise UsageError(problems_under("tracking", error)) from error
    for tracker in ("mlflow", "wandb"):
        for field in dataclasses.fields(config):
            if field.name.startswith(f"{tracker}_") and getattr(config, field.name) and not getattr(config, tracker):
                raise UsageError(
                    f"has no effect without {tracker}",
                    key=f"tracking.{field.name}",
                    received=getattr(config, field.name),
                    remedy=f'add "{tracker}": True',
                )
    return config
