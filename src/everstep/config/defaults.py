"""What a config class says by itself: the values of its fields where nobody sets them."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.config.checking import field_types
from everstep.config.node import Node, nodes_in
from everstep.config.problem import join


def class_defaults(cls: type[Node]) -> dict[str, Any]:
    """Returns the default of every field that has one, as an instance would hold it."""
    types = field_types(cls)
    found = {field.name: _default(field) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return {name: types[name].convert(value) for name, value in found.items() if value is not dataclasses.MISSING}


def at_default(config: Node) -> set[str]:
    """Returns the key paths at which a config holds what its classes say by themselves, all that is below included.

    The defaults of a config that another one holds are those which the holder gives it: where `MnistConfig` has
    `train_data = DataConfig(global_batch_size=128)`, that is the default there. If it was given one of another
    class, they are those of that class.
    """
    return set(_at_default(_values(config), class_defaults(type(config)), ""))


def _at_default(values: Mapping[str, Any], defaults: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in values.items():
        default, where = defaults.get(name, dataclasses.MISSING), join(path, str(name))
        if isinstance(value, Node):
            own = _values(default) if type(default) is type(value) else class_defaults(type(value))
            yield from _at_default(_values(value), own, where)
        elif value == default:
            yield where
        elif isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _at_default(value, default, where)
        else:
            for below, node in nodes_in(value, where):
                yield from _at_default(_values(node), class_defaults(type(node)), below)


def _values(config: Node) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config._names()}


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
