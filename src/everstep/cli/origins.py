"""Where each value of a resolved configuration came from."""

from collections.abc import Iterator, Mapping
from typing import Any

from everstep import redaction
from everstep.cli.request import Resolved
from everstep.config import Config
from everstep.config.defaults import at_default
from everstep.config.layer import last_setter, walk
from everstep.config.problem import join
from everstep.run.key_path import is_below

_MAX_LENGTH = 100


class Origins:
    """Says for a key path where its value came from, in the words of a comment.

    That is `conf.yaml:12` or the flag or override that set it last; `default` where nobody set it and the class
    says so; the experiment's name where its own function set it.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._experiment = resolved.experiment
        self._layers = resolved.layers
        self._factory = dict(walk(resolved.factory.as_dict()))
        self._default = at_default(resolved.params)
        self._gave_way = dict(_gave_way(resolved.params))
        length = resolved.params.trainer.optimizer_config.open_length
        self._length = f"trainer.optimizer_config.{length}"

    def of(self, path: str, value: Any) -> str:
        """Returns the origin of the value at a key path; of a section, those of all values in it."""
        if isinstance(value, Mapping) and value:
            return ", ".join(dict.fromkeys(self.of(below, leaf) for below, leaf in walk(value, path)))
        return _one_line(redaction.text(self._of_leaf(path, value)))

    def _of_leaf(self, path: str, value: Any) -> str:
        if path == self._length and value is not None:
            return "follows trainer.train_steps"
        is_default = is_below(path, self._default)
        if path in self._gave_way and not is_default:
            return self._gave_way[path]
        if setter := last_setter(self._layers, path):
            return setter.origin_of(path)
        if is_default:
            return "default"
        # Nobody says so, and yet it is not the experiment's own: the backend, where it was left open.
        return "chosen here" if self._factory.get(path, value) != value else self._experiment


def _gave_way(config: Config, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the alternatives that are None because another one has a value."""
    for group in config._alternative_groups():
        used = next((name for name in group if getattr(config, name) is not None), None)
        yield from ((join(path, name), f"gives way to {used}") for name in group if used and name != used)
    for below, child in config._children(config._names()):
        yield from _gave_way(child, join(path, below))


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
