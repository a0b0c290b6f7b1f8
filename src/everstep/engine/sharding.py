"""Which device holds which part of a variable: decided from keys and shapes, before anything is allocated.

The devices form a mesh with named axes. The axis `data` shares each batch; other axes, such as `model`, only divide
variables. A spec names for each dimension of a variable the axis that divides it, or None:

    plan = ShardingPlan({"data": 2, "model": 4}, {"dense/kernel": [None, "model"]})
    plan.specs({"model/dense/kernel": (64, 512), "optimizer/model/dense/kernel/momentum": (64, 512)}, parameters=…)

`mesh.py` applies a plan to the devices; `everstep config --sharding` prints it.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from everstep.errors import Problem, UsageError, nearest

DATA = "data"
"""The axis that shares each batch."""

SMALL = 2**14
"""With fsdp, variables of fewer elements are replicated: to gather one takes longer than to read it."""

Axes = Mapping[str, int]
"""The number of devices along each axis of a mesh."""

Spec = tuple[str | None, ...]
"""For each dimension of a variable the axis that divides it; empty for a variable that every device holds."""

Layout = Mapping[str, Sequence[str | None]]
"""Specs by regular expressions for keys of variables."""

Sharding = str | Layout
"""`replicated`, `fsdp`, or a layout."""

MODES = ("replicated", "fsdp")
_SHARDING, _MESH = "runtime.sharding", "runtime.mesh"


class ShardingPlan:
    """The specs of a run's variables.

    Args:
      axes: The mesh.
      sharding: `replicated`: every device holds every variable. `fsdp`: parameters are divided over the axis `data`,
        on the largest dimension that it divides. A layout: parameters whose keys match are divided as it says, the
        others are replicated. Slots of an optimizer always have the spec of their parameter; everything else is
        replicated.
    """

    def __init__(self, axes: Axes, sharding: Sharding = "replicated") -> None:
        self.axes = dict(axes)
        self.sharding = sharding

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds every variable."""
        return self.sharding == "replicated" or not self.sharding

    def spec_for_new(self, shape: Sequence[int]) -> Spec:
        """Returns the spec that a variable is created with, before its key is known.

        That is the final one with `fsdp`. With a layout it divides as far as the shape allows: no device holds more
        than it will later.
        """
        if self.is_replicated or math.prod(shape) < SMALL:
            return ()
        if self.sharding == "fsdp":
            return self._divided(shape, [DATA])
        return self._divided(shape, sorted(self.axes, key=lambda axis: -self.axes[axis]))

    def specs(self, shapes: Mapping[str, Sequence[int]], parameters: Collection[str]) -> dict[str, Spec]:
        """Returns the spec of every variable.

        Args:
          shapes: The shapes of all variables, by key.
          parameters: The keys of the variables of the model and the task; others are slots, metrics, sums.

        Raises:
          UsageError: The layout does not fit; lists all problems.
        """
        if self.is_replicated:
            return dict.fromkeys(shapes, ())
        if self.sharding == "fsdp":
            chosen = {key: self.spec_for_new(shapes[key]) for key in parameters}
        else:
            chosen = self._matched({key: shapes[key] for key in shapes if key in parameters})
        return {key: chosen.get(key, ()) or _of_slot(key, shape, shapes, chosen) for key, shape in shapes.items()}

    def bytes_per_device(self, shape: Sequence[int], spec: Spec, itemsize: int) -> int:
        """Returns how many bytes of a variable each device holds."""
        parts = math.prod(self.axes[axis] for axis in spec if axis is not None)
        return math.prod(shape) * itemsize // parts

    def _divided(self, shape: Sequence[int], axes: Sequence[str]) -> Spec:
        """Divides the largest dimension that an axis divides, for one axis after the other."""
        spec: list[str | None] = [None] * len(shape)
        for axis in axes:
            free = [i for i, size in enumerate(shape) if spec[i] is None and size and size % self.axes[axis] == 0]
            if free and self.axes[axis] > 1:
                spec[max(free, key=lambda i: shape[i])] = axis
        return _trimmed(spec)

    def _matched(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Spec]:
        layout: Layout = {} if isinstance(self.sharding, str) else self.sharding
        problems: list[Problem] = []
        found: dict[str, str] = {}  # the expression that matches a key
        for pattern, spec in layout.items():
            keys = [key for key in shapes if re.search(pattern, key)]
            if not keys:
                text = "matches no variable of the model or the task"
                problems.append(_problem(pattern, spec, text, f"their keys are {_listed(shapes)}"))
            for key in keys:
                if key in found:
                    text = f"matches {key}, which {found[key]!r} matches, too"
                    problems.append(_problem(pattern, spec, text, "change one: each variable needs one"))
                found.setdefault(key, pattern)
            problems += next(filter(None, (self._misfit(pattern, spec, key, shapes[key]) for key in keys)), [])
        if problems:
            raise UsageError(problems)
        return {key: _trimmed(layout[pattern]) for key, pattern in found.items()}

    def _misfit(self, pattern: str, spec: Sequence[str | None], key: str, shape: Sequence[int]) -> list[Problem]:
        if len(spec) > len(shape):
            text = f"matches {key} of shape {list(shape)}, which has fewer dimensions"
            return [_problem(pattern, spec, text, "name one axis, or null, for each dimension")]
        for size, axis in zip(shape, spec, strict=False):
            if axis is not None and size % self.axes[axis]:
                text = f"matches {key} of shape {list(shape)}, but {axis!r} has {self.axes[axis]} devices, "
                return [
                    _problem(pattern, spec, f"{text}which do not divide {size}", "divide another dimension, or none")
                ]
        return []


def wrong_mesh(axes: Axes | None) -> Iterator[Problem]:
    """Yields what is wrong with a mesh in itself; keys are relative to the runtime section."""
    if axes is None:
        return
    if DATA not in axes:
        text = f"has no axis {DATA!r}, which shares each batch"
        yield Problem("mesh", text, received=dict(axes), remedy=f"add {DATA}: 1 if every device takes the whole batch")
    for name, size in axes.items():
        if not name.isidentifier():
            yield Problem("mesh", "is not a name for an axis", received=name, remedy="use letters, digits and _")
        if size < 1:
            yield Problem(f"mesh.{name}", "must be at least 1", received=size)


def wrong_sharding(sharding: Sharding, axes: Axes | None) -> Iterator[Problem]:
    """Yields what is wrong with a sharding that needs no variables to see it; keys are relative to the section."""
    if isinstance(sharding, str):
        if sharding not in MODES:
            remedy = f"{nearest(sharding, MODES)}, or a layout: {{'dense/kernel': [null, model]}}"
            yield Problem("sharding", "is no sharding", received=sharding, remedy=remedy)
        return
    names = list(axes or {DATA: 0})
    for pattern, spec in sharding.items():
        try:
            re.compile(pattern)
        except re.error as error:
            yield Problem("sharding", f"is not a regular expression: {error}", received=pattern)
        used = [axis for axis in spec if axis is not None]
        for axis in dict.fromkeys(used):
            if axis not in names:
                text = f"{pattern!r} names the axis {axis!r}, which the mesh does not have"
                yield Problem("sharding", text, received=list(spec), remedy=f"it has {', '.join(names)}: set mesh")
            elif used.count(axis) > 1:
                text = f"{pattern!r} names the axis {axis!r} twice: it can divide one dimension"
                yield Problem("sharding", text, received=list(spec), remedy="write null for the other")


def check_size(axes: Axes, devices: int) -> None:
    """Refuses a mesh that has not as many places as there are devices.

    Raises:
      UsageError: It has more or fewer.
    """
    if math.prod(axes.values()) != devices:
        there = "1 device" if devices == 1 else f"{devices} devices"
        raise UsageError(
            f"{' * '.join(map(str, axes.values()))} is {math.prod(axes.values())}, but the run has {there}",
            key=_MESH,
            received=dict(axes),
            remedy=f"choose sizes whose product is {devices}",
        )


def check_batch(size: int, axes: Axes) -> None:
    """Refuses batches that the devices cannot share evenly.

    Raises:
      UsageError: The axis `data` does not divide the size of a training batch.
    """
    if size % axes[DATA]:
        raise UsageError(
            f"must be a multiple of {axes[DATA]}, the size of the mesh's axis {DATA!r}, which shares each batch",
            key="task.train_data.global_batch_size",
            received=size,
            remedy=f"set it to {max(size // axes[DATA], 1) * axes[DATA]}, or change {{mesh}}",
            mentions={"mesh": _MESH},
        )


def _of_slot(key: str, shape: Sequence[int], shapes: Mapping[str, Sequence[int]], chosen: Mapping[str, Spec]) -> Spec:
    """Returns the spec of the parameter whose slot this is: `optimizer/model/dense/kernel/momentum`."""
    parts = key.split("/")
    served = ("/".join(parts[begin:-1]) for begin in range(1, len(parts) - 1))
    return next((chosen[name] for name in served if name in chosen and tuple(shapes[name]) == tuple(shape)), ())


def _trimmed(spec: Sequence[str | None]) -> Spec:
    """Returns a spec without what it does not say: None at its end."""
    kept = list(spec)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def _problem(pattern: str, spec: Sequence[str | None], reason: str, remedy: str) -> Problem:
    return Problem(_SHARDING, reason, received={pattern: list(spec)}, remedy=remedy)


def _listed(keys: Collection[str]) -> str:
    some = ", ".join(sorted(keys)[:20])
    return some if len(keys) <= 20 else f"{some} and {len(keys) - 20} more"
