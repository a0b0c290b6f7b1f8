"""A configuration as components read it: `config.model_builder.dropout_rate`."""

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.config.problem import join
from everstep.errors import UsageError, nearest


class MissingKeyError(UsageError, AttributeError):
    """A component asks for a key that its configuration does not have; `getattr(section, name, default)` works."""


class ConfigStruct:
    """Values by attribute, sections as further structs.

        config = ConfigStruct({"batch_size": 8, "model_builder": {"activation": "relu"}})
        config.model_builder.activation      # "relu"
        config.get("dropout", 0.1)           # 0.1

    A key that is not there is an error that names it, its file and the nearest ones. A section without keys is false.

    Args:
      values: The values; mappings in them become structs.
      origin: The file they are from, for messages.
      path: The key of this section, empty at the top.
      lines: The line of each key in the file, as far as they are known.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        origin: str = "",
        path: str = "",
        lines: Mapping[str, int] | None = None,
    ) -> None:
        self._origin, self._path, self._lines = origin, path, lines or {}
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self[str(name)] = value

    @property
    def origin(self) -> str:
        """The file that the values are from."""
        return str(self._origin)

    def place(self, key: str) -> str:
        """Returns where a key is set: the file, and the line where that is known."""
        return f"{self._origin}, line {self._lines[key]}" if key in self._lines else self.origin

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or `default` where the key is missing or None."""
        value = self._values.get(name)
        return default if value is None else value

    def as_dict(self) -> dict[str, Any]:
        """Returns the values as plain nested dicts."""
        return {
            name: value.as_dict() if isinstance(value, ConfigStruct) else value for name, value in self._values.items()
        }

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yields every value that is set with its dotted key."""
        for name, value in self._values.items():
            if isinstance(value, ConfigStruct):
                yield from value.leaves()
            elif value is not None:
                yield join(self._path, name), value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        where = f" (from {self._origin})" if self._origin else ""
        raise MissingKeyError(
            f"{join(self._path, name)}: is asked for and not set; {nearest(name, self._values)}{where}"
        )

    def __setitem__(self, name: str, value: Any) -> None:
        is_section = isinstance(value, Mapping)
        self._values[name] = ConfigStruct(value, self._origin, join(self._path, name)) if is_section else value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigStruct) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ConfigStruct({self.as_dict()!r})"
