"""Records what a step does while it is traced: variables that it creates or uses, and its sparse class labels."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from everstep.engine.replaced import current, replaced
from everstep.errors import UsageError
from everstep.keras_internals import backend as keras_backend
from everstep.task.optim import with_inner


@dataclasses.dataclass
class Watched:
    """The variables that were created, read or assigned inside a block.

    Attributes:
      created: Those that were created.
      touched: Those that were read or assigned, by id.
      assigned: The ids of those that were assigned.
    """

    created: list[keras.Variable] = dataclasses.field(default_factory=list)
    touched: dict[int, keras.Variable] = dataclasses.field(default_factory=dict)
    assigned: set[int] = dataclasses.field(default_factory=set)

    @property
    def all(self) -> list[keras.Variable]:
        """All recorded variables, in the order in which steps use them; a created one may be listed twice."""
        return [*self.touched.values(), *self.created]


@contextlib.contextmanager
def watch_variables() -> Iterator[Watched]:
    """Yields a record of the variables that this thread creates, reads or assigns inside the block."""
    watched = Watched()
    init, value, assign = _explained_init(), current(keras.Variable, "value"), current(keras.Variable, "assign")

    def watched_init(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        watched.created.append(self)

    def watched_value(self: keras.Variable) -> Any:
        watched.touched[id(self)] = self
        return value.fget(self)

    def watched_assign(self: keras.Variable, new: Any) -> Any:
        watched.touched[id(self)] = self
        watched.assigned.add(id(self))
        return assign(self, new)

    with (
        replaced(keras.Variable, "__init__", watched_init),
        replaced(keras.Variable, "value", property(watched_value)),
        replaced(keras.Variable, "assign", watched_assign),
    ):
        yield watched


@contextlib.contextmanager
def updates_skipped(optimizers: Iterable[keras.Optimizer]) -> Iterator[None]:
    """Makes optimizers assign to each weight the value that it has, for a trace that is thrown away.

    What a step creates, uses and assigns does not depend on the formula of an update, and with many variables to trace
    it takes most of the time. An optimizer whose formula is the user's runs it: it may create and use anything.

    Args:
      optimizers: The optimizers of the run, whose slots are part of the state whether a trace shows them or not.
    """
    held = {id(optimizer) for optimizer in with_inner(optimizers)}
    update = current(keras.Optimizer, "_backend_update_step")

    def skipped(self: keras.Optimizer, grads: Any, variables: Any, learning_rate: Any) -> None:
        if id(self) not in held or not self.update_step.__module__.startswith(("keras.", "everstep.")):
            update(self, grads, variables, learning_rate)
            return
        for variable in variables:
            variable.assign(variable.value)

    with replaced(keras.Optimizer, "_backend_update_step", skipped):
        yield


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses Python's garbage collector inside the block, for tracing.

    A trace creates so many objects that the collector would visit every object of every imported package, which takes
    as long as tracing a small model, and finds next to nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def no_new_variables() -> Iterator[None]:
    """Refuses variables that are created inside the block.

    In a compiled step a new variable would leak: created while tracing, held by no object, and created again by the
    next trace.
    """
    init = _explained_init()

    def refuse(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        raise _created_inside(self.path)

    with replaced(keras.Variable, "__init__", refuse):
        yield


def _explained_init() -> Callable[..., None]:
    """Returns the constructor of variables, with an explained error if the backend cannot create one while tracing."""
    init = current(keras.Variable, "__init__")

    def explained(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValueError as error:
            if "while in a stateless scope" in str(error) or "could not be lifted" in str(error):
                raise _created_inside(self.path) from error
            raise

    return explained


def _created_inside(name: str) -> UsageError:
    return UsageError(
        "is created inside a step",
        key=f"variable {name!r}",
        remedy="create it in __init__ or build_model and keep it in an attribute",
    )


@dataclasses.dataclass(frozen=True)
class SparseLabels:
    """The labels that a sparse cross-entropy was called with, and the number of classes."""

    target: Any
    classes: int


@contextlib.contextmanager
def watch_sparse_labels(clip: bool = False) -> Iterator[list[SparseLabels]]:
    """Yields the list of labels that sparse cross-entropies are called with inside the block.

    Args:
      clip: Whether to replace labels that are no class, which would fail; for calls whose result is not used.
    """
    seen: list[SparseLabels] = []
    original = current(keras_backend.nn, "sparse_categorical_crossentropy")

    def watched(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Any:
        classes = output.shape[axis]
        if isinstance(classes, int):
            seen.append(SparseLabels(target, classes))
            target = keras.ops.clip(keras.ops.nan_to_num(target), 0, classes - 1) if clip else target
        return original(target, output, from_logits=from_logits, axis=axis)

    with replaced(keras_backend.nn, "sparse_categorical_crossentropy", watched):
        yield seen
