"""Learning rates that differ from layer to layer: that of the optimizer, times a factor for each variable.

Keras passes one learning rate to all updates. `LayerRates` replaces the two methods of an optimizer that use it, the
update and the decoupled weight decay: each is called once for every factor, with the variables that have it and the
learning rate times the factor. So a variable is updated exactly as by the same optimizer with that learning rate, also
where Keras updates all variables at once, as on PyTorch.

Factors follow from names that are the same in every process (`optimizers.set_names`), so a resumed run has the same.
They are constants, and no part of the state.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.errors import UsageError
from everstep.task.optim.config import LayerRatesConfig
from everstep.task.optim.optimizers import Names, matches

_SHOWN = 8  # names of variables in an error
_NUMBER = re.compile(r"([0-9]+)(?=[_/])")


@dataclasses.dataclass(frozen=True)
class Rate:
    """What a variable's rate follows from.

    Attributes:
      layer: The block, the expression, or what else it belongs to, for the table.
      factor: The factor of the learning rate.
    """

    layer: str
    factor: float


class LayerRates:
    """Gives the variables of an optimizer rates of their own; changes the optimizer, and is its `layer_rates`.

    Args:
      optimizer: The optimizer, not built.
      config: The factors.
      key: Key path of the config, for errors.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, config: LayerRatesConfig, key: str) -> None:
        self._optimizer, self._config, self._key = optimizer, config, key
        self._names: Names = dict
        self._rates: list[Rate] = []  # of the variables, in the order that the optimizer was built with
        self._factor = 1.0  # of the variables whose weights decay now
        changed = {
            "layer_rates": self,
            "build": self._build,
            "_backend_update_step": self._update,
            "_apply_weight_decay": self._decay,
            "_get_current_learning_rate": self._learning_rate,
        }
        for name, value in changed.items():
            object.__setattr__(optimizer, name, value)  # Keras would track them

    def name_variables(self, names: Names) -> None:
        """Sets the names of the variables; for a variable without a name its Keras path is used."""
        self._names = names
        if self._optimizer.built:
            self._select(self._optimizer._trainable_variables)

    def table(self) -> str:
        """Returns the factors, a line for each layer."""
        counts: dict[Rate, int] = {}
        for rate in self._rates:
            counts[rate] = counts.get(rate, 0) + 1
        width = max(len(f"{rate.factor:.6g}") for rate in counts)
        return "\n".join(
            f"  {rate.factor:<{width}.6g}  {rate.layer} ({count} variable{'s' if count > 1 else ''})"
            for rate, count in counts.items()
        )

    def _select(self, variables: Sequence[keras.Variable]) -> None:
        names = self._names()
        named = [names.get(id(variable), variable.path) for variable in variables]
        config = self._config
        rates = [Rate("all others", 1.0)] * len(named)
        if config.decay is not None:
            rates = by_depth(named, config.decay, config.blocks, self._key)
        own = by_name(named, config.factors, f"{self._key}.factors")
        self._rates = [own.get(name, rate) for name, rate in zip(named, rates, strict=True)]

    # -- the methods of the optimizer; those of its class are called with some of the variables ----------------------

    def _build(self, variables: Sequence[keras.Variable]) -> None:
        if not self._optimizer.built:
            self._select(variables)
        self._of_class("build")(variables)

    def _update(self, grads: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> None:
        grads, variables = list(grads), list(variables)
        for factor, places in self._groups(variables):
            part = [grads[place] for place in places], [variables[place] for place in places]
            rate = learning_rate if factor == 1 else learning_rate * factor
            self._of_class("_backend_update_step")(*part, rate)

    def _decay(self, variables: Sequence[Any]) -> None:
        decaying = [variable for variable in variables if self._optimizer._use_weight_decay(variable)]
        for factor, places in self._groups(decaying):
            with self._at(factor):
                self._of_class("_apply_weight_decay")([decaying[place] for place in places])

    def _learning_rate(self) -> Any:
        rate = self._of_class("_get_current_learning_rate")()
        return rate if self._factor == 1 else rate * self._factor

    def _of_class(self, name: str) -> Callable[..., Any]:
        return getattr(type(self._optimizer), name).__get__(self._optimizer)

    def _groups(self, variables: Sequence[Any]) -> Iterator[tuple[float, list[int]]]:
        """Yields each factor, and the places of its variables."""
        groups: dict[float, list[int]] = {}
        for place, variable in enumerate(variables):
            index = self._optimizer._get_variable_index(variable)
            groups.setdefault(self._rates[index].factor, []).append(place)
        yield from groups.items()

    @contextlib.contextmanager
    def _at(self, factor: float) -> Iterator[None]:
        self._factor = factor
        try:
            yield
        finally:
            self._factor = 1.0


def rate_table(optimizer: Any) -> str:
    """Returns the factors of an optimizer, or of one that it wraps, as lines; empty if all variables have one rate."""
    while optimizer is not None:
        if (rates := getattr(optimizer, "layer_rates", None)) is not None:
            return rates.table()
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return ""


# -- which variable has which factor ----------------------------------------------------------------------------------


def by_name(names: Sequence[str], factors: Mapping[str, float], key: str) -> dict[str, Rate]:
    """Returns the rates of the variables that an expression matches.

    Raises:
      UsageError: An expression matches no variable, or a variable matches two.
    """
    found: dict[str, Rate] = {}
    for pattern, factor in factors.items():
        matched = [name for name in dict.fromkeys(names) if matches([pattern], name)]
        if not matched:
            raise UsageError("matches no trained variable", key=key, received=pattern, remedy=_listed(names))
        for name in matched:
            if name in found:
                reason = f"{found[name].layer!r} matches {name}, too"
                raise UsageError(reason, key=key, received=pattern, remedy="let a variable match one expression")
            found[name] = Rate(pattern, factor)
    return found


def by_depth(names: Sequence[str], decay: float, blocks: str, key: str) -> list[Rate]:
    """Returns the rates of all variables, in this order, by the block that each is part of.

    The blocks, what comes before the first one and what comes after the last one follow each other; the last of them
    has the learning rate, each other one `decay` times that of the next. A variable between two blocks belongs to the
    one before it.

    Args:
      names: The names of the variables, from the inputs of the model to its outputs.
      decay: The factor from one to the next.
      blocks: An expression with a group for the number of a block; empty to look for numbers in the names.
      key: The key of the section that configures it, for errors.

    Raises:
      UsageError: There are no blocks.
    """
    found = _chosen_blocks(names, blocks, key) if blocks else _outermost_blocks(names)
    if not found:
        reason = "found no blocks: no layers whose names differ in a number"
        remedy = f"set {{blocks}}, or factors by name; {_listed(names)}"
        raise UsageError(
            reason, key=f"{key}.decay", received=decay, remedy=remedy, mentions={"blocks": f"{key}.blocks"}
        )
    places = [place for place, name in enumerate(names) if name in found]
    layers: list[tuple[int, int, str]] = []  # for each variable: before, in or after the blocks; the number; its name
    for place, name in enumerate(names):
        if place < places[0]:
            layers.append((0, 0, "before the blocks"))
        elif place > places[-1]:
            layers.append((2, 0, "after the blocks"))
        else:
            layers.append((1, *found[name]) if name in found else layers[-1])
    depths = {layer: depth for depth, layer in enumerate(sorted({layer[:2] for layer in layers}, reverse=True))}
    return [Rate(layer[2], decay ** depths[layer[:2]]) for layer in layers]


def _chosen_blocks(names: Sequence[str], pattern: str, key: str) -> dict[str, tuple[int, str]]:
    """Returns the number and the name of the block of each variable that the user's expression matches."""
    found: dict[str, tuple[int, str]] = {}
    for name in names:
        if match := re.search(pattern, name):
            number = next((group for group in match.groups() if group is not None), "")
            if not number.isdecimal():
                reason = f"the group is {number!r} in {name}, not a number"
                raise UsageError(reason, key=f"{key}.blocks", received=pattern)
            found[name] = int(number), match[0].strip("/")
    if not found:
        raise UsageError("matches no trained variable", key=f"{key}.blocks", received=pattern, remedy=_listed(names))
    return found


def _outermost_blocks(names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Returns the number and the name of the block of each variable that is in one.

    Blocks are layers whose names differ in a number only: `layer_0/…` and `layer_1/…`, or `dense/…` and `dense_1/…`. Of
    several such series it is one that is not inside of others, and of those the longest.
    """
    series: dict[str, dict[str, tuple[int, str]]] = {}  # by what comes before the number
    for name in names:
        for match in _NUMBER.finditer(name):
            series.setdefault(name[: match.start()], {})[name] = int(match[1]), name[: match.end()]
    for start, blocks in series.items():
        first = start.removesuffix("_")  # to which Keras gives no number
        if 0 not in _numbers(blocks):
            blocks |= {name: (0, first) for name in names if name.startswith(f"{first}/")}
    several = {start: blocks for start, blocks in series.items() if len(_numbers(blocks)) > 1}
    chosen = min(several, key=lambda start: (start.count("/"), -len(_numbers(several[start]))), default="")
    return several.get(chosen, {})


def _numbers(blocks: Mapping[str, tuple[int, str]]) -> set[int]:
    return {number for number, _ in blocks.values()}


def _listed(names: Sequence[str]) -> str:
    return f"the trained variables are {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
