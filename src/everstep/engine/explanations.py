"""Explains errors of Keras and the backends in terms of the user's model, data and task.

The original errors describe what failed deep inside, with coloured shapes and forty frames. Nothing is checked in
advance: a cause is searched for only after something has failed.
"""

import ast
import contextlib
import inspect
import itertools
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.data import RaggedArray, SparseArray, nest
from everstep.engine.replaced import replaced
from everstep.errors import Problem, TrainingError, UsageError, cause_in_keras, own_frames, wants_traceback
from everstep.task import CompiledTask, unpack
from everstep.types import Batch

_SHAPES = re.compile("shape|rank|dimension|broadcast|size of tensor|size mismatch", re.IGNORECASE)

_SPARSE_LOSS = ("`target.ndim - 1`", "same shape up until the last dimension")
"""Parts of the messages of Keras's sparse cross-entropies about labels of the wrong shape, by backend."""

_NO_LOSS = "No loss to compute"
"""A part of Keras's message about a model that was compiled without a loss, and that adds none."""

_DENSE_LOSS = ("must have the same rank", "must have the same shape.")
"""The same for the cross-entropies that expect a number for each class."""


@contextlib.contextmanager
def explain_shapes(model: keras.Model, batches: Sequence[Batch | None]) -> Iterator[None]:
    """Explains errors of the first call of a model by the shapes of its inputs and labels, or by the loss it lacks.

    An error that they do not explain is raised unchanged if code of the user took part in it.

    Raises:
      UsageError: The shapes of the model and of the data do not match, or a compiled model has no loss.
    """
    try:
        yield
    except (UsageError, TrainingError, NotImplementedError):
        raise
    except Exception as error:
        text = cause_in_keras(error)
        if _NO_LOSS in text:
            raise UsageError(f"the model has no loss of its own: {text}", key="loss", received=None) from (
                error if wants_traceback() else None
            )
        given = [batch for batch in batches if batch is not None]
        problems = [
            found
            for batch in given
            if (
                found := _missing_input(batch, text)
                or _wrong_inputs(model, batch)
                or _without_batches(batch, text)
                or _wrong_labels(batch, text)
            )
        ]
        if not problems and not own_frames(error, below=__file__) and _SHAPES.search(text):
            problems = [_shape_problem(error, text, model, given[0])]
        if not problems:
            raise
        raise UsageError(problems[0]) from (error if wants_traceback() else None)


def _wrong_inputs(model: keras.Model, batch: Batch) -> Problem | None:
    """Returns the input of the model whose arrays have the wrong shape."""
    expected = getattr(model, "inputs", None) or []
    features, names = unpack(batch)[0], [getattr(tensor, "name", "") for tensor in expected]
    if isinstance(features, dict):
        if not set(names) <= set(features):  # Keras matches them in its own order
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
        if _fits(wanted[1:], shape) and not _fits(wanted[1:], shape[1:]):
            return _single_samples(shape)
        if len(wanted) not in (len(shape), len(shape) + 1, len(shape) - 1) or not _fits(wanted[1:], shape[1:]):
            which = f"its input {tensor.name!r}" if len(expected) > 1 else "its input"
            text = f"the samples have the shape {shape[1:]}, but the model was built for {wanted[1:]} at {which}"
            return Problem("x", text, remedy="reshape the data, or change keras.Input")
    return None


def _missing_input(batch: Batch, error: str) -> Problem | None:
    """Returns a problem if an input of the model is no key of the batch, as Keras says without the remedy."""
    features = unpack(batch)[0]
    found = re.search(r'Missing data for input "([^"]*)"', error)
    if found is None or not isinstance(features, dict) or found[1] in features:
        return None
    text = f"the model's input {found[1]!r} is no key of the batch, which has {', '.join(map(repr, features))}"
    own = next((key for key in features if f"'{key}'" not in error.partition("Expected the following keys")[2]), "x")
    return Problem("x", text, remedy=f"name the input after its key: keras.Input(…, name={own!r})")


def _without_batches(batch: Batch, error: str) -> Problem | None:
    """Returns a problem if a layer lacks an axis that the inputs of a model without declared inputs lack."""
    found = re.search(r"expected (?:min_)?ndim=(\d+), found ndim=(\d+)\. Full shape received: (\([^)]*\))", error)
    if found is None or int(found[1]) != int(found[2]) + 1:
        return None
    shapes = [tuple(array.shape) for array in _parts(unpack(batch)[0])]
    return next((_single_samples(shape) for shape in shapes if str(shape) == found[3]), None)


def _single_samples(shape: tuple) -> Problem:
    text = f"the data yields single samples of the shape {shape}, but the model takes batches of them"
    return Problem("x", text, remedy="yield batches: dataset.batch(size), or np.stack(samples)")


def _fits(wanted: tuple, shape: tuple) -> bool:
    """Whether a sample fits an input, except for an axis of length 1 that Keras adds or removes."""
    if len(wanted) == len(shape):
        return all(one is None or one == other for one, other in zip(wanted, shape, strict=True))
    longer, shorter = (wanted, shape) if len(wanted) > len(shape) else (shape, wanted)
    return longer[-1] in (1, None) and _fits(longer[:-1], shorter)


def _parts(tree: Any) -> list[Any]:
    """Returns the tensors of a nesting; none if one is sparse or ragged, which has no single shape."""
    if any(isinstance(part, SparseArray | RaggedArray) for part in (tree if type(tree) in (tuple, list) else (tree,))):
        return []
    return nest.flatten(tree)


def _wrong_labels(batch: Batch, error: str) -> Problem | None:
    """Returns a problem if labels are one-hot and the loss expects class numbers, or the other way round."""
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


def _shape_problem(error: Exception, text: str, model: keras.Model, batch: Batch) -> Problem:
    """Returns the original error with all shapes, where neither inputs nor labels alone explain it."""
    parts = zip(("x", "y", "sample_weight"), unpack(batch), strict=True)
    shapes = {
        name: ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in nest.flatten(part))
        for name, part in parts
        if part is not None
    }
    listed = "; ".join(f"{name} {shape}" for name, shape in shapes.items())
    outputs = getattr(model, "output_shape", None)
    given = f"a batch of {listed}" + (f", outputs {outputs}" if outputs else "")
    reason = f"model and data do not fit together: {type(error).__name__}: {text} ({given})"
    return Problem("", reason, remedy="change one of them")


# -- errors in a step -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain(task: Any) -> Iterator[None]:
    """Explains errors of a model or of steps that cannot be compiled by what to change in the task."""
    # TensorFlow's lines are looked for first: JAX reports them as any other use of a tensor in Python.
    with _explained_keras(task), _explained_tensorflow(task), _compiled_metrics():
        yield


@contextlib.contextmanager
def _compiled_metrics() -> Iterator[None]:
    """Makes `model.compiled_metrics` the metrics that the model was compiled with, or None, as in Keras 2.

    Keras 3 always has the attribute on TensorFlow and never elsewhere, so `if model.compiled_metrics:` would not work.
    """
    with replaced(keras.Model, "compiled_metrics", property(lambda model: model._compile_metrics)):
        yield


@contextlib.contextmanager
def _explained_tensorflow(task: Any) -> Iterator[None]:
    """Explains errors of a step that uses TensorFlow on another backend by the lines that use it."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if keras.backend.backend() == "tensorflow":
            raise
        lines = tape_lines(task)
        if not lines and (line := _line_that_calls_tensorflow(error)):
            raise UsageError(
                "calls TensorFlow on a tensor, which works only on TensorFlow, but the backend is "
                f"{keras.backend.backend()!r}",
                key=type(_owner(task)).__name__,
                remedy=f"use keras.ops, which works on every backend, instead of\n  {line}",
            ) from error
        if not lines:
            raise
        raise UsageError(
            "records gradients with tf.GradientTape, which works only on TensorFlow, but the backend is "
            f"{keras.backend.backend()!r}",
            key=type(_owner(task)).__name__,
            remedy="use everstep.value_and_grad(loss_fn, variables, optimizer=optimizer), which works on every "
            "backend, instead of\n" + "\n".join(f"  {line}" for line in lines),
        ) from error


def _line_that_calls_tensorflow(error: Exception) -> str:
    """Returns the line of the user's, as `file:line: code`, that called the code of TensorFlow which failed."""
    for cause in _causes(error):
        own = {(frame.filename, frame.lineno) for frame in own_frames(cause, below=__file__)}
        for caller, called in itertools.pairwise(traceback.extract_tb(cause.__traceback__)):
            if (caller.filename, caller.lineno) in own and "tensorflow" in Path(called.filename).parts:
                return _place(caller)
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that it replaces: Keras wraps the errors of layers, and loses their frames."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _place(frame: traceback.FrameSummary) -> str:
    """Returns a line of a traceback as `file:line: code`."""
    return f"{frame.filename}:{frame.lineno}: {frame.line}"


@contextlib.contextmanager
def _explained_keras(task: Any) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        text = " ".join(str(error).split())
        if "Unseeded random ops" in text:
            holder = "its layer" if isinstance(task, CompiledTask) else "the task"
            raise UsageError(
                "draws unseeded random numbers inside a step",
                key=type(_owner(task)).__name__,
                remedy=f"keep `self.seed = keras.random.SeedGenerator(1)` in {holder} and pass `seed=self.seed` to "
                "keras.random",
            ) from error
        raise
    except (TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        # Keras replaces an error of JAX by one of the same class, which that class does not allow ("_error_repr").
        text = " ".join(str(cause) for cause in _causes(error)).lower()
        if any(re.search(words, text) for words in _NUMPY_VALUES):
            lines = [_place(frame) for cause in _causes(error) for frame in own_frames(cause, below=__file__)[-1:]]
            remedy = "use keras.ops, which works on tensors" + "".join(f", instead of\n  {line}" for line in lines[-1:])
            reason = "converts a tensor to NumPy in a step, where its values are not known yet"
            raise UsageError(reason, key=type(_owner(task)).__name__, remedy=remedy) from error
        converted = "symbolic" in text or "traced array" in text or "concrete value is expected" in text
        if "_error_repr" in text or (converted and any(word in text for word in _PYTHON_VALUES)):
            raise decided_in_python(task) from error
        raise


_NUMPY_VALUES = (
    r"__array__\(\) was called on traced array",
    r"tracer'? (object )?has no attribute '?numpy",
    r"'symbolictensor' object has no attribute 'numpy'",
    r"cannot convert a symbolic tf\.tensor .* to a numpy array",
    r"can't call numpy\(\) on tensor that requires grad",
)
"""What backends say about a tensor that is converted to an array of NumPy."""

_PYTHON_VALUES = ("bool", "float(", "int(", "concrete value")
"""Parts of the messages of backends about a tensor that is converted to a value of Python."""


def _owner(task: Any) -> Any:
    """Returns what the user has written: the task, or the compiled model."""
    return task.build_model() if isinstance(task, CompiledTask) else task


def decided_in_python(task: Any) -> UsageError:
    """Returns the error for a step with `if tensor:`, `float(tensor)` and the like."""
    remedy = "use everstep.cond(predicate, true_fn, false_fn), or keras.ops.where"
    owner = _owner(task)
    if getattr(owner, "run_eagerly", False):
        remedy += "; steps are compiled, also with run_eagerly=True: only on PyTorch such code runs as it is"
    return UsageError(
        "decides in Python on a value that is known only when the step runs",
        key=type(owner).__name__,
        remedy=remedy,
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
    """Returns the lines that open or use a `GradientTape`, each as `file:line: code`.

    Searches the methods of the task's own classes and, recursively, the functions that they name, except those of
    libraries. Functions that are called through an object, such as a method of a helper, are not found.
    """
    return [line for function in _functions(task) for line in _lines(function)]


def _functions(task: Any) -> list[types.FunctionType]:
    """Returns the methods of the task's classes, the functions that they name, and so on."""
    classes = [cls for cls in type(task).__mro__ if not _is_library(cls.__module__)]
    waiting = [found for cls in classes for value in vars(cls).values() if (found := _unwrapped(value))]
    functions: dict[int, types.FunctionType] = {}
    while waiting:
        function = waiting.pop(0)
        if id(function.__code__) not in functions:
            functions[id(function.__code__)] = function
            waiting += _named_in(function)
    return list(functions.values())


def _named_in(function: types.FunctionType) -> list[types.FunctionType]:
    """Returns the functions that a function refers to, as `function` or as `module.function`."""
    names = _names(function.__code__)
    enclosing = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    values = [value for name, value in [*function.__globals__.items(), *enclosing.items()] if name in names]
    modules = [value for value in values if inspect.ismodule(value) and not _is_library(value.__name__)]
    values += [vars(module)[name] for module in modules for name in names & vars(module).keys()]
    return [found for value in values if (found := _unwrapped(value)) and not _is_library(found.__module__)]


def _unwrapped(value: Any) -> types.FunctionType | None:
    """Returns the function inside a static or class method, a property or a decorator; None if there is none."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while (inner := inspect.getattr_static(value, "__wrapped__", None)) is not None:
        value = inner
    return value if inspect.isfunction(value) else None


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that a piece of code uses, including those in functions that it defines."""
    inner = [_names(constant) for constant in code.co_consts if inspect.iscode(constant)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _lines(function: types.FunctionType) -> Iterator[str]:
    """Yields the lines of a function that name `GradientTape`, and then those that call `gradient`."""
    if _TAPE not in _names(function.__code__):
        return
    try:
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, SyntaxError, TypeError):  # typed into a prompt, or generated
        return
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)]
    named = [(node.attr if isinstance(node, ast.Attribute) else node.id, node.lineno) for node in nodes]
    numbers = {line for name, line in named if name == _TAPE}
    if numbers:
        numbers |= {line for name, line in named if name == "gradient"}
    for number in sorted(numbers):
        yield f"{inspect.getsourcefile(function)}:{first + number - 1}: {source[number - 1].strip()}"
