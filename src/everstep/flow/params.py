"""The parameters of a task, read with dots; a name that is not there is answered with the nearest ones."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from everstep.config import Config
from everstep.errors import UsageError, nearest


class MissingParameter(UsageError, AttributeError):
    """A parameter that no block has; `hasattr` and `getattr(…, default)` work as ever."""


@dataclasses.dataclass(repr=False, eq=False)
class Params(Config):
    """Values of `parameters.yaml`, nested ones too: `self.params.epoch`, `self.params["epoch"]`."""

    _open = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingParameter(f"there is no parameter {name!r}; {nearest(name, self._names())}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or `default` where there is none of that name."""
        return getattr(self, name) if name in self else default
