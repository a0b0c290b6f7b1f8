"""Errors of Keras and the backends in the words of the user's own model, data and task.

They say what failed deep inside, with shapes in colours and forty frames. Reasons are searched only once something has
failed: what works is never checked.
"""

import ast
import contextlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from everstep.data import nest
from everstep.data.sparse import RaggedArray, SparseArray
from everstep.errors import Problem, TrainingError, UsageError, own_frames, plain_text, wants_traceback
from everstep.task.task import unpack
from everstep.types import Batch

_AROUND = re.compile(r"^Exception encountered when calling \S+\. |Arguments received by .*$")
_SHAPES = re.compile("shape|rank|dimension|broadcast|size of tensor|size mismatch", re.IGNORECASE)

_SPARSE_LOSS = ("`target.ndim - 1`", "same shape up until the last dimension")
"""How Keras's sparse cross-entropies begin to complain about labels of another shape, by backend."""

_DENSE_LOSS = ("must have the same rank", "must have the same shape.")
"""The same of those that want a number for each class."""


@contextlib.contextmanager
def misfits_explained(model: keras.Model, batches: Sequence[Batch | None]) -> Iterator[None]:
    """Inside the block, where a model meets its first batches, errors say what does not go together.

    An error of which the shapes show no reason is left as it is, where code of the user's own took part in it.

    Raises:
      UsageError: Model and data do not go together.
    """
    try:
        yield
    except (UsageError, TrainingError, NotImplementedError):
        raise
    except Exception as error:
        text, given = _AROUND.sub("", plain_text(error)).strip().rstrip("."), [b for b in batches if b is not None]
        problems = [found for batch in given if (found := _wrong_inputs(model, batch) or _wrong_labels(batch, text))]
        if not problems and not own_frames(error, below=__file__) and _SHAPES.search(text):
            problems = [_misfit(error, text, model, given[0])]
        if not problems:
            raise
        raise UsageError(problems[0]) from (error if wants_traceback() else None)


def _wrong_inputs(model: keras.Model, batch: Batch) -> Problem | None:
    """Returns which input of the model gets arrays of another shape than it has."""
    expected = getattr(model, "inputs", None) or []
    features, names = unpack(batch)[0], [getattr(tensor, "name", "") for tensor in expected]
    if isinstance(features, dict):
        if not set(names) <= set(features):  # Keras finds them in an order of its own
            return None
        features = [features[name] for name in names]
    given = _parts(features)
    if len(expected) != len(given):
        if len(expected) > 1 or (expected and len(given) > 1):
            text = f"{len(given)} arrays were passed, but the model has {len(expected)} inputs: {', '.join(names)}"
            return Problem("x", text)
        return None
    for tensor, array in zip(expected, given, strict=True):
        wanted, shape = tuple(tensor.shape), tuple(array.shape)
        if len(wanted) not in (len(shape), len(shape) + 1, len(shape) - 1) or not _fits(wanted[1:], shape[1:]):
            which = f"its input {tensor.name!r}" if len(expected) > 1 else "its input"
            text = f"the samples have the shape {shape[1:]}, but the model was built for {wanted[1:]} at {which}"
            return Problem("x", text, remedy="reshape the data, or change keras.Input")
    return None


def _fits(wanted: tuple, shape: tuple) -> bool:
    """Whether a sample fits an input, but for an axis of length 1 that Keras adds or takes away."""
    if len(wanted) == len(shape):
        return all(one is None or one == other for one, other in zip(wanted, shape, strict=True))
    longer, shorter = (wanted, shape) if len(wanted) > len(shape) else (shape, wanted)
    return longer[-1] in (1, None) and _fits(longer[:-1], shorter)


def _parts(tree: Any) -> list[Any]:
    """Returns the tensors of a nesting; a sparse or ragged one in parts has no shape to compare."""
    if any(isinstance(part, SparseArray | RaggedArray) for part in (tree if type(tree) in (tuple, list) else (tree,))):
        return []
    return nest.flatten(tree)


def _wrong_labels(batch: Batch, error: str) -> Problem | None:
    """Returns whether labels are one-hot where class numbers are wanted, or the other way round."""
    labels = unpack(batch)[1]
    shape = getattr(labels, "shape", None)
    if shape is None:
        return None
    if any(text in error for text in _SPARSE_LOSS) and len(shape) > 1 and shape[-1] > 1:
        return Problem(
            "y",
            f"the labels have {shape[-1]} numbers for each sample, as one-hot labels have, but the loss expects the "
            "number of a class",
            remedy="pass y.argmax(axis=-1), or use the loss categorical_crossentropy",
        )
    if any(text in error for text in _DENSE_LOSS) and (len(shape) < 2 or shape[-1] == 1):
        return Problem(
            "y",
            "the labels are one number for each sample, but the loss expects one for each class",
            remedy="pass keras.utils.to_categorical(y), or use the loss sparse_categorical_crossentropy",
        )
    return None


def _misfit(error: Exception, text: str, model: keras.Model, batch: Batch) -> Problem:
    parts = zip(("x", "y", "sample_weight"), unpack(batch), strict=True)
    listed = "; ".join(f"{name} {_shapes(part)}" for name, part in parts if part is not None)
    outputs = getattr(model, "output_shape", None)
    given = f"a batch of {listed}" + (f", outputs {outputs}" if outputs else "")
    reason = f"model and data do not fit together: {type(error).__name__}: {text} ({given})"
    return Problem("", reason, remedy="change one of them")


def _shapes(part: Any) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in nest.flatten(part))


# -- errors in a step -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain(task: Any) -> Iterator[None]:
    """Turns errors for what cannot be compiled into ones that say what to do in a task."""
    with _explained_tape(task), _explained_keras(task), _compiled_metrics():
        yield


@contextlib.contextmanager
def _compiled_metrics() -> Iterator[None]:
    """Inside the block `model.compiled_metrics` is what the model was compiled with, as it was in Keras 2; else None.

    In Keras 3 it is always there on TensorFlow, and never elsewhere: `if model.compiled_metrics:` would mean nothing.
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
            "records gradients with tf.GradientTape, which knows TensorFlow alone, but the backend is "
            f"{keras.backend.backend()!r}",
            key=type(task).__name__,
            remedy="use everstep.value_and_grad(loss_fn, variables, optimizer=optimizer), which works on all, instead "
            "of\n" + "\n".join(f"  {line}" for line in lines),
        ) from error


@contextlib.contextmanager
def _explained_keras(task: Any) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        text = " ".join(str(error).split())
        if "Unseeded random ops" in text:
            raise UsageError(
                "draws unseeded random numbers inside a step",
                key=type(task).__name__,
                remedy="keep `self.seed = keras.random.SeedGenerator(1)` in the task and pass `seed=self.seed` to "
                "keras.random",
            ) from error
        raise
    except TypeError as error:
        if "bool" in str(error) and ("symbolic" in str(error) or "traced array" in str(error)):
            raise decided_in_python(task) from error
        raise


def decided_in_python(task: Any) -> UsageError:
    """Returns the error for a step with `if tensor:`."""
    return UsageError(
        "decides in Python on a value that is known only when the step runs",
        key=type(task).__name__,
        remedy="use everstep.cond(predicate, true_fn, false_fn), or keras.ops.where",
    )


# -- lines of a task that open a tf.GradientTape ----------------------------------------------------------------------

_TAPE = "GradientTape"
_LIBRARIES = {
    "everstep",
    "keras",
    "tensorflow",
    "jax",
    "jaxlib",
    "torch",
    "numpy",
    "abc",
    "builtins",
    *sys.stdlib_module_names,
}


def tape_lines(task: Any) -> list[str]:
    """Returns the lines that open or ask a `GradientTape`, each as `file:line: code`.

    Looked through are the methods of the task's own classes, and the functions that those name, wherever they are
    written, libraries apart. What is called by way of an object, such as the method of a helper, is not found.
    """
    return [line for function in _functions(task) for line in _lines(function)]


def _functions(task: Any) -> list[types.FunctionType]:
    """Returns the functions of the task's classes, and those they name, and so on."""
    waiting, found = list(_methods(task)), {}
    while waiting:
        function = waiting.pop(0)
        if id(function.__code__) not in found:
            found[id(function.__code__)] = function
            waiting += _named_in(function)
    return list(found.values())


def _methods(task: Any) -> Iterator[types.FunctionType]:
    for cls in type(task).__mro__:
        if not _is_library(cls.__module__):
            yield from filter(None, map(_plain, vars(cls).values()))


def _named_in(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yields the functions that a function names, by themselves or as `module.function`."""
    names = _names(function.__code__)
    values = [value for name, value in _scope(function) if name in names]
    modules = [value for value in values if inspect.ismodule(value) and not _is_library(value.__name__)]
    values += [vars(module)[name] for module in modules for name in names & vars(module).keys()]
    yield from (found for found in filter(None, map(_plain, values)) if not _is_library(found.__module__))


def _scope(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Returns what the names in a function may stand for: of its module, and of the function it is written in."""
    around = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return [*function.__globals__.items(), *around.items()]


def _plain(value: Any) -> types.FunctionType | None:
    """Returns the function in a static or class method, a property, or what a decorator made of one; None if none."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while (inner := inspect.getattr_static(value, "__wrapped__", None)) is not None:
        value = inner
    return value if inspect.isfunction(value) else None


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that a piece of code uses, and those in the functions defined in it."""
    inner = [_names(constant) for constant in code.co_consts if inspect.iscode(constant)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _lines(function: types.FunctionType) -> Iterator[str]:
    if _TAPE not in _names(function.__code__):
        return
    try:
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, SyntaxError, TypeError):  # typed into a prompt, or made by another program
        return
    for number in sorted(_tape_numbers(tree)):
        yield f"{inspect.getsourcefile(function)}:{first + number - 1}: {source[number - 1].strip()}"


def _tape_numbers(tree: ast.AST) -> set[int]:
    """Returns the numbers of the lines that name `GradientTape`, or take a gradient from what was opened as one."""
    named = [(_name(node), node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)]
    opened = {line for name, line in named if name == _TAPE}
    return opened | {line for name, line in named if name == "gradient" and opened}


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
