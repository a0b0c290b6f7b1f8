"""What can be wrong in `parameters.yaml` and in overrides, found before anything is trained."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstep.config import ConfigError, Layer, Problem
from everstep.config.layer import last_setter
from everstep.config.problem import show
from everstep.errors import nearest
from everstep.flow.params import Params
from everstep.flow.settings import DEFAULTS

_ALIKE = 0.85  # from here on a key is taken for a known one that was mistyped
_SECTIONS = ("catalog", "optimizer", "experiment")


def check_blocks(files: Sequence[Layer], header: Mapping[str, Sequence[tuple[Any, str]]], tasks: Iterable[str]) -> None:
    """Refuses what nobody would read in the files of parameters.

    Args:
      files: They.
      header: What they say at their top that `sources.read` takes for settings of the request.
      tasks: The names of all tasks.

    Raises:
      ConfigError: Each finding with its key, its file and line.
    """
    names = list(tasks)
    problems = [
        Problem(key, "is no key of a flow", said[-1][1]) for key, said in header.items() if said and key != "experiment"
    ]
    for layer in files:
        problems += [*_misplaced(layer, names), *_wrong_blocks(layer, names)]
    if problems:
        raise ConfigError(problems)


def _misplaced(layer: Layer, tasks: Sequence[str]) -> Iterator[Problem]:
    """Yields top-level keys that belong elsewhere, or are a task's name in another spelling."""
    spelled = {name.lower(): name for name in tasks}
    for name in map(str, layer.tree):
        place = layer.origin_of(name)
        if name in ("catalog", "optimizer"):
            yield Problem(name, f"belongs in {name}.yaml", place)
        elif name in DEFAULTS:
            yield Problem(
                name, "belongs in the block of a task, such as " + repr(f"{(tasks or ['Mnist_A'])[0]}.{name}"), place
            )
        elif name not in tasks and name.lower() in spelled:
            yield Problem(name, f"is no task; did you mean {spelled[name.lower()]!r}?", place)


def _wrong_blocks(layer: Layer, tasks: Sequence[str]) -> Iterator[Problem]:
    for name in tasks:
        block = layer.tree.get(name)
        if block is not None and not isinstance(block, Mapping):
            yield Problem(name, f"received {show(block)}, expected keys with values", layer.origin_of(name))
        elif block:
            yield from _mistyped(layer, name, block)


def _mistyped(layer: Layer, task: str, block: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields keys that are nearly one which the default `run` reads; any other may be the task's own."""
    unset = [name for name in DEFAULTS if name not in block]
    for key in map(str, block):
        meant = [] if key in DEFAULTS else difflib.get_close_matches(key, unset, n=2, cutoff=_ALIKE)
        if meant:
            path = f"{task}.{key}"
            yield Problem(
                path, f"is no parameter; did you mean {' or '.join(map(repr, meant))}?", layer.origin_of(path)
            )


def check_overrides(files: Sequence[Layer], given: Sequence[Layer], chain: Sequence[str], tasks: Iterable[str]) -> None:
    """Refuses overrides that would change nothing.

    Raises:
      ConfigError: Each with the nearest names.
    """
    shared = {str(key) for layer in files for key in layer.tree} - set(tasks)
    known = {*chain[:-1], *_SECTIONS, *shared}
    problems = [
        Problem(str(name), _why_not(str(name), value, chain, tasks, known), layer.origin)
        for layer in given
        for name, value in layer.tree.items()
        if str(name) not in known
    ]
    if problems:
        raise ConfigError(problems)


def _why_not(name: str, value: Any, chain: Sequence[str], tasks: Iterable[str], known: Iterable[str]) -> str:
    if name in tasks:
        return f"the task that runs inherits nothing from it: {' <- '.join(chain)}"
    if meant := parameter_meant(name):
        return f"is a parameter of a task: write {chain[0]}.{meant}={show(value)}"
    return f"unknown key; {nearest(name, known)}"


def parameter_meant(name: str) -> str:
    """Returns the parameter of the default `run` that a name is, or is nearly; empty where there is none."""
    return next(iter(difflib.get_close_matches(name, list(DEFAULTS), n=1, cutoff=_ALIKE)), "")


def check_values(params: Params, task: str, layers: Sequence[Layer]) -> None:
    """Checks the parameters that the default `run` reads.

    Raises:
      ConfigError: Each finding with its key, its file and line.
    """
    problems = []
    for name, (fits, wanted) in _RULES.items():
        value, path = params[name], f"{task}.{name}"
        if not fits(value):
            setter = last_setter(layers, path)
            place = setter.origin_of(path) if setter else ""
            problems.append(Problem(path, f"received {show(value)}, expected {wanted}", place))
    if problems:
        raise ConfigError(problems)


def _whole(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


_RULES: dict[str, tuple[Any, str]] = {
    "epoch": (lambda value: _whole(value, 1), "a whole number of at least 1"),
    "batch_size": (lambda value: _whole(value, 1), "a whole number of at least 1"),
    "seed": (lambda value: _whole(value, 0) and value < 2**32, f"a whole number from 0 to {2**32 - 1}"),
    "shuffle": (lambda value: isinstance(value, bool), "true or false"),
    "validation_split": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1,
        "a share of the training data, from 0 to less than 1",
    ),
}
