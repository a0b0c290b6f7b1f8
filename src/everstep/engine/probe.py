"""What is watched while a step is traced: variables that appear or are used, and errors that need better words."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras

from everstep.engine.tapes import tape_lines
from everstep.errors import UsageError


@dataclasses.dataclass
class Watched:
    """The variables that were created, read or assigned meanwhile."""

    created: list[keras.Variable] = dataclasses.field(default_factory=list)
    touched: dict[int, keras.Variable] = dataclasses.field(default_factory=dict)

    @property
    def all(self) -> list[keras.Variable]:
        """All of them."""
        return [*self.created, *self.touched.values()]


@contextlib.contextmanager
def watch_variables() -> Iterator[Watched]:
    """Yields a record of the variables that are created, read and assigned meanwhile."""
    watched = Watched()
    init, value, assign = _explained_init(), keras.Variable.value, keras.Variable.assign

    def watched_init(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        watched.created.append(self)

    def watched_value(self: keras.Variable) -> Any:
        watched.touched[id(self)] = self
        return value.fget(self)

    def watched_assign(self: keras.Variable, new: Any) -> Any:
        watched.touched[id(self)] = self
        return assign(self, new)

    with (
        replaced("__init__", watched_init),
        replaced("value", property(watched_value)),
        replaced("assign", watched_assign),
    ):
        yield watched


@contextlib.contextmanager
def no_new_variables() -> Iterator[None]:
    """Refuses variables created meanwhile.

    In a compiled step a new variable would leak: made at tracing, held by nobody, and made anew at the next one.
    """
    init = _explained_init()

    def refuse(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        raise _created_inside(self.path)

    with replaced("__init__", refuse):
        yield


@contextlib.contextmanager
def explain(task: Any) -> Iterator[None]:
    """Turns errors for what cannot be compiled into ones that say what to do in a task."""
    with _explained_tape(task), _explained_keras(task), _compiled_metrics():
        yield


@contextlib.contextmanager
def _compiled_metrics() -> Iterator[None]:
    """Inside the block `model.compiled_metrics` is what the model was compiled with, as it was in Keras 2; else None.

    In Keras 3 it is always there on TensorFlow, and never elsewhere: `if model.compiled_metrics:` would tell nothing.
    """
    name = "compiled_metrics"
    if name in vars(keras.Model):  # around another one
        yield
        return
    setattr(keras.Model, name, property(lambda model: model._compile_metrics))
    try:
        yield
    finally:
        delattr(keras.Model, name)


@contextlib.contextmanager
def _explained_tape(task: Any) -> Iterator[None]:
    """A step that opens a `tf.GradientTape` fails in some way or other on another backend: shows where it does."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        lines = tape_lines(task) if keras.backend.backend() != "tensorflow" else []
        if not lines:
            raise
        raise UsageError(
            f"{type(task).__name__} records gradients with tf.GradientTape, which knows TensorFlow alone, but the "
            f"backend is {keras.backend.backend()!r}: use everstep.value_and_grad(loss_fn, variables, "
            "optimizer=optimizer), which works on all, instead of\n" + "\n".join(f"  {line}" for line in lines)
        ) from error


@contextlib.contextmanager
def _explained_keras(task: Any) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        text = " ".join(str(error).split())
        if "Unseeded random ops" in text:
            raise UsageError(
                f"{type(task).__name__} draws unseeded random numbers inside a step: keep "
                "`self.seed = keras.random.SeedGenerator(1)` in the task and pass `seed=self.seed` to keras.random"
            ) from error
        raise
    except TypeError as error:
        if "bool" in str(error) and ("symbolic" in str(error) or "traced array" in str(error)):
            raise decided_in_python(task) from error
        raise


def _explained_init() -> Callable[..., None]:
    """Returns the constructor of variables with better words where a backend refuses one while it traces."""
    init = keras.Variable.__init__

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
        f"variable {name!r} is created inside a step: create it in __init__ or build_model and keep it in an attribute"
    )


def decided_in_python(task: Any) -> UsageError:
    """Returns the error for a step with `if tensor:`."""
    return UsageError(
        f"{type(task).__name__} decides in Python on a value that is known only when the step runs: "
        "use everstep.cond(predicate, true_fn, false_fn), or keras.ops.where"
    )


@contextlib.contextmanager
def replaced(name: str, replacement: Any) -> Iterator[None]:
    """Replaces an attribute of `keras.Variable` for a while."""
    own = vars(keras.Variable).get(name)
    setattr(keras.Variable, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(keras.Variable, name)
        else:
            setattr(keras.Variable, name, own)
