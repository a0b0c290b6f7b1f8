"""`name`, `tags` and `notes` of `fit`: what a run is called; by default as its model."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from everstep.errors import UsageError, kind_of
from everstep.run import Labels

_OURS = ("everstep.", "mlflow.")
"""What the names of tags may not begin with: trackers find runs by tags of their own."""


def labels_of(model: keras.Model, name: Any, tags: Any, notes: Any) -> Labels:
    """Returns what a call of `fit` says about its run.

    Raises:
      UsageError: An argument is of another kind.
    """
    if name is not None and (not isinstance(name, str) or not name.strip() or "\n" in name):
        raise UsageError("expected a name on one line", key="name", received=name)
    if notes is not None and not isinstance(notes, str):
        raise UsageError(f"expected a text, not {kind_of(notes)}", key="notes", received=notes)
    return Labels((name or "").strip(), model_name(model), None if tags is None else _tags(tags), notes)


def model_name(model: keras.Model) -> str:
    """Returns the name that a user gave a model, or its class: Keras's own names count the models of a process."""
    kind = type(model).__name__
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    snake_case = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return kind if re.fullmatch(rf"{re.escape(snake_case)}(_\d+)?", model.name) else model.name


def _tags(tags: Any) -> dict[str, str]:
    wanted = 'expected words, such as ["baseline"], or texts by name, such as {"team": "vision"}'
    if not isinstance(tags, Iterable):
        raise UsageError(wanted, key="tags", received=tags)
    words = [tags] if isinstance(tags, str) else tags
    found = dict(words) if isinstance(words, Mapping) else dict.fromkeys(words, "")
    for name, value in found.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(value, str | int | float):
            raise UsageError(wanted, key="tags", received={name: value})
        if name.startswith(_OURS):
            raise UsageError(f"must not begin with {name.partition('.')[0]}.", key="tags", received=name)
    return {name.strip(): str(value) for name, value in found.items()}
