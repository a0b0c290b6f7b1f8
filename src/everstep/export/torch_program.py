"""`model.pt2`: the forward pass as an exported program of PyTorch, for `torch.export.load`."""

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.errors import TrainingError, UsageError, missing_extra
from everstep.export.comparison import check_same, live_outputs
from everstep.export.saved_model import declared_inputs

logger = logging.getLogger(__name__)


def export_torch_program(model: keras.Model, path: storage.PathLike, sample: Any) -> None:
    """Writes the model as an exported program, after checking that it loads and has the model's outputs.

    It contains the model's variables by name, on the CPU, and none of the optimizer; loading it needs only PyTorch.
    The batch may have any size, unless the model was built for one. Another dimension that the model leaves open stays
    open, unless its code loops over it.

    Args:
      model: The trained model.
      path: The file to write; an existing one is replaced.
      sample: One batch of model inputs, NumPy arrays in any nesting.

    Raises:
      UsageError: The backend is not PyTorch, or PyTorch cannot export this model.
      TrainingError: The program has other outputs than the model; it is removed.
    """
    if keras.backend.backend() != "torch":
        raise UsageError("a PyTorch program needs 'torch'", key="backend", received=keras.backend.backend())
    torch = importlib.import_module("torch")
    storage.prepare_directory(Path(path).parent)
    expected = live_outputs(model, sample)
    with storage.atomic_path(path) as temporary, torch.no_grad(), _quiet():
        _write(torch, model, temporary, sample)
        check_same(model, expected, _loaded_outputs(torch, model, temporary, sample), str(path))


def _write(torch: Any, model: keras.Model, path: Path, sample: Any) -> None:
    inputs = _inputs(model, _at_least_two(model, sample))
    shapes = _shapes(torch, model, inputs)
    try:
        program = torch.export.export(_forward(torch, model), (inputs,), dynamic_shapes=(shapes,))
    except Exception as error:  # many kinds, from PyTorch, Keras and the model's own code
        raise UsageError(f"PyTorch cannot export it: {_reason(error)}", key="model", received=model.name) from error
    _warn_of_fixed_dimensions(program, model, inputs)
    # For the CPU, whichever device trained the model: so it loads on every machine, and can be moved.
    on_cpu = importlib.import_module("torch.export.passes").move_to_device_pass(program, "cpu")
    # First into memory: PyTorch's writer aborts the process when it is released after a full disk.
    written = io.BytesIO()
    torch.export.save(on_cpu, written)
    path.write_bytes(written.getbuffer())


def _forward(torch: Any, model: keras.Model) -> Any:
    """Returns the model as a module that has each variable once, under its Keras path.

    Keras keeps variables under several names, and its layers bypass the module when they read them: PyTorch would
    export them as constants.
    """
    names = _names(model.variables)

    class Forward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, variable in names.items():
                self.register_buffer(name, variable.value.detach())

        def forward(self, inputs: Any) -> Any:
            held = [(variable, getattr(self, name)) for name, variable in names.items()]
            with keras.StatelessScope(state_mapping=held):  # assignments are dropped: a program has no state
                # Explicit, because layers that augment images treat None as training.
                return model(inputs, training=False)

    return Forward().eval()


def _names(variables: Sequence[keras.Variable]) -> dict[str, keras.Variable]:
    """Returns the variables by path; where several share a path, the later ones are numbered."""
    named: dict[str, keras.Variable] = {}
    for index, variable in enumerate(variables):
        path = variable.path.replace(".", "_")  # a dot would mean a submodule
        named[f"{path}_{index}" if path in named else path] = variable
    return named


def _inputs(model: keras.Model, sample: Any) -> Any:
    """Returns the batch as tensors in the types that the model declares."""
    arrays = keras.tree.flatten(sample)
    types = [one.dtype for one in declared_inputs(model, sample)] or [None] * len(arrays)
    tensors = [keras.ops.convert_to_tensor(a, dtype) for a, dtype in zip(arrays, types, strict=True)]
    return keras.tree.pack_sequence_as(sample, tensors)


def _at_least_two(model: keras.Model, sample: Any) -> Any:
    """Returns the batch with a second row if it has only one: PyTorch would treat the size 1 as fixed."""
    if any(one.shape[0] is not None for one in declared_inputs(model, sample)):
        return sample
    return keras.tree.map_structure(lambda a: np.repeat(a, 2, axis=0) if len(a) == 1 else a, sample)


def _shapes(torch: Any, model: keras.Model, inputs: Any) -> Any:
    """Returns which dimensions may have another size: the batch, and those that the model leaves open."""
    batch, other = torch.export.Dim("batch", min=1), torch.export.Dim.AUTO
    shapes = [{i: other if i else batch for i in dims} for dims in _open(model, inputs)]
    return keras.tree.pack_sequence_as(inputs, shapes)


def _open(model: keras.Model, inputs: Any) -> list[list[int]]:
    """Returns the dimensions of each input that have no fixed size."""
    leaves, declared = keras.tree.flatten(inputs), declared_inputs(model, inputs)
    shapes = [one.shape for one in declared] or [(None, *leaf.shape[1:]) for leaf in leaves]
    return [[i for i, size in enumerate(shape) if size is None] for shape in shapes]


def _warn_of_fixed_dimensions(program: Any, model: keras.Model, inputs: Any) -> None:
    """Warns of dimensions that are open in the model but fixed in the program, such as the steps of an RNN."""
    known = _symbolic().is_concrete_int
    taken = [node.meta["val"].shape for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    for shape, dims in zip(taken, _open(model, inputs), strict=True):
        if fixed := [str(i) for i in dims if known(shape[i])]:
            logger.warning(
                "the program takes only inputs of shape %s: the model loops over dimension %s",
                [int(size) if known(size) else None for size in shape],
                ", ".join(fixed),
            )


def _loaded_outputs(torch: Any, model: keras.Model, path: Path, sample: Any) -> list[np.ndarray]:
    inputs = keras.tree.map_structure(lambda tensor: tensor.cpu(), _inputs(model, sample))
    with warnings.catch_warnings():  # some versions warn that they read the file into read-only memory
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        outputs = torch.export.load(str(path)).module()(inputs)
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


def _reason(error: BaseException) -> str:
    """Returns the cause in one line, without PyTorch's advice."""
    text = str(error)
    if isinstance(error, _symbolic().GuardOnDataDependentSymNode):
        return "its call branches in Python on the value of a tensor: use keras.ops.where or keras.ops.cond"
    if "specialized it to be a constant" in text:
        return (
            "it works for one batch size only, as Keras's SimpleRNN does: use another layer, or -1 or "
            "keras.ops.shape(x)[0] in your own code"
        )
    lines = [line.strip() for line in text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]
    reasons = [line for line in lines if line and not line.startswith("Exception encountered")]
    return f"{type(error).__name__}: {next(iter(reasons), 'no reason given')}"


def _symbolic() -> Any:
    return importlib.import_module("torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses PyTorch's log lines when an export fails: the error contains them."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class ExportedProgram:
    """An exported PyTorch program, loaded to predict and to read its weights.

    Args:
      path: The `.pt2` file.
      dtypes: The types of its inputs, flat; None to pass inputs as they are.
    """

    def __init__(self, path: str | Path, dtypes: Sequence[str] | None = None) -> None:
        try:
            self._torch = importlib.import_module("torch")
        except ModuleNotFoundError:
            raise missing_extra("torch", "torch", f"opening {str(path)!r}") from None
        program = self._torch.export.load(str(path))
        self._call, self._weights, self._dtypes = program.module(), program.state_dict, dtypes

    def predict(self, x: Any) -> Any:
        """Returns the outputs for a batch of inputs, as NumPy arrays in the model's nesting."""
        flat = [np.asarray(leaf) for leaf in keras.tree.flatten(x)]
        dtypes = self._dtypes or [leaf.dtype.name for leaf in flat]
        tensors = [self._torch.tensor(leaf.astype(dtype)) for leaf, dtype in zip(flat, dtypes, strict=True)]
        with self._torch.no_grad():
            outputs = self._call(keras.tree.pack_sequence_as(x, tensors))
        return keras.tree.map_structure(self._array, outputs)

    def _array(self, tensor: Any) -> np.ndarray:
        return np.asarray((tensor.float() if tensor.dtype == self._torch.bfloat16 else tensor).numpy())

    def give_weights(self, model: keras.Model) -> None:
        """Assigns the exported weights to a model: losses that the model adds itself depend on them.

        Raises:
          TrainingError: The weights are those of another model.
        """
        stored = list(self._weights.values())  # in the model's order; Keras numbers layer names within a process
        if [tuple(v.shape) for v in model.variables] != [tuple(value.shape) for value in stored]:
            raise TrainingError(
                "the exported model has other weights than get_compiled_model() builds", remedy="export it again"
            )
        for variable, value in zip(model.variables, stored, strict=True):
            variable.assign(self._array(value))
