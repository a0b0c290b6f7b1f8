"""`model.pt2`: the forward pass as PyTorch's own exported program, for `torch.export.load` and all that reads it."""

import importlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.errors import UsageError
from everstep.export.comparison import check_same, live_outputs


def export_torch_program(model: keras.Model, path: storage.PathLike, sample: Any) -> None:
    """Writes the model as an exported program that is known to load and to answer as the model does.

    It holds the variables of the model and nothing of the optimizer. The batch may have any size from two on, unless
    the model was built for one.

    Args:
      model: The trained model.
      path: Where to write; a file that is there is replaced.
      sample: One batch of model inputs, NumPy arrays in any nesting.

    Raises:
      UsageError: The backend is another one.
      TrainingError: What was written answers otherwise than the model. Nothing is left of it.
    """
    if keras.backend.backend() != "torch":
        raise UsageError(f"a program of PyTorch needs the backend 'torch', not {keras.backend.backend()!r}")
    torch = importlib.import_module("torch")
    storage.prepare_directory(Path(path).parent)
    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, sample)
    expected = live_outputs(model, sample)
    with storage.atomic_path(path) as temporary, torch.no_grad():
        _write(torch, model, temporary, inputs)
        loaded = torch.export.load(str(temporary)).module()
        actual = [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(loaded(inputs))]
        check_same(model, expected, [np.asarray(output) for output in actual], f"{str(path)!r}")


def _write(torch: Any, model: keras.Model, path: Path, inputs: Any) -> None:
    class Forward(torch.nn.Module):
        """The model, told that it is not trained: layers that augment images take silence for training."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Any) -> Any:
            return self.model(inputs, training=False)

    batch = torch.export.Dim("batch", min=1)
    shapes = keras.tree.map_structure(lambda _: {0: batch}, inputs)
    program = torch.export.export(Forward().eval(), (inputs,), dynamic_shapes=(shapes,))
    with open(path, "wb") as file:
        torch.export.save(program, file)
