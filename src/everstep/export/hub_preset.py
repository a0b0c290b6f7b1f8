"""The formats of KerasHub models: a preset, a file of LoRA adapters, and a folder for Hugging Face Transformers.

`preset/` has the adapters merged into the weights: KerasHub's `from_preset` loads it anywhere. `adapter.lora.h5` has
the adapters alone, for `backbone.load_lora_weights` on the preset that they were trained on. `transformers/` is written
for the models that KerasHub can convert.
"""

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.engine import adapted_layers, greedy, is_hub_task, keras_hub, not_found
from everstep.errors import TrainingError, UsageError, missing_extra, plain_text
from everstep.export.comparison import check_same, flat_arrays, live_outputs, unchanged

logger = logging.getLogger(__name__)

PRESET, ADAPTER, TRANSFORMERS = "preset", "adapter.lora.h5", "transformers"

_PROMPT, _WRITTEN = 8, 16  # tokens that texts are compared by


def export_preset(model: Any, path: storage.PathLike, sample: Any) -> None:
    """Writes a KerasHub preset with the adapters merged, after checking that it loads and has the model's outputs.

    Args:
      model: A KerasHub task.
      path: The folder to write.
      sample: One batch of model inputs.

    Raises:
      TrainingError: It loads back with other outputs. Nothing is written.
    """
    storage.prepare_directory(Path(path).parent)
    with storage.atomic_path(path) as temporary:
        with not_found():
            model.save_to_preset(str(temporary))
        _check(model, _loaded(model, temporary), sample, str(path))


def export_adapter(model: Any, path: storage.PathLike, sample: Any) -> None:
    """Writes the adapters of a KerasHub task as KerasHub does, after checking that they load.

    KerasHub's file has no place for `alpha`, so it is multiplied into the matrices.

    Args:
      model: A KerasHub task whose backbone has adapters.
      path: The file to write, ending in `.lora.h5`.
      sample: One batch of model inputs.

    Raises:
      UsageError: More was trained than the adapters of dense layers.
      TrainingError: It loads back with other outputs. Nothing is written.
    """
    layers = adapted_layers(model.backbone)
    matrices = {id(v) for layer in layers if hasattr(layer, "lora_kernel_a") for v in _matrices(layer)}
    others = [variable.path for variable in model.trainable_variables if id(variable) not in matrices]
    if others:
        raise UsageError(f"the file would lack {others[0]}, which was trained, too: use {PRESET}/", received=str(path))
    storage.prepare_directory(Path(path).parent)
    expected = live_outputs(model, sample)
    with storage.atomic_path(path) as temporary, unchanged([v for layer in layers for v in _matrices(layer)]):
        file = temporary.with_name(f"{temporary.name}.lora.h5")
        with _without_alpha(layers):
            model.backbone.save_lora_weights(str(file))
            for variable in (v for layer in layers for v in _matrices(layer)):
                variable.assign(keras.ops.zeros_like(variable.value))
            model.backbone.load_lora_weights(str(file))
            check_same(model, expected, live_outputs(model, sample), str(path))
        file.rename(temporary)


def converts(model: Any) -> bool:
    """Returns whether KerasHub writes models of this class for Hugging Face Transformers."""
    with not_found():
        exporter = importlib.import_module("keras_hub.src.utils.transformers.export.hf_exporter")
    is_causal = isinstance(model, keras_hub().models.CausalLM)  # heads of classifiers are not converted
    return is_causal and type(model.backbone).__name__ in exporter.MODEL_CONFIGS


def export_transformers(model: Any, path: storage.PathLike, sample: Any, preset: Path) -> None:
    """Writes a folder for Hugging Face Transformers, after checking that KerasHub reads the model's outputs from it.

    Args:
      model: The live KerasHub task.
      path: The folder to write.
      sample: One batch of model inputs.
      preset: The exported preset: its weights are converted.

    Raises:
      UsageError: The package that writes its files is not installed.
      TrainingError: It loads back with other outputs. Nothing is written.
    """
    if importlib.util.find_spec("safetensors") is None:
        raise missing_extra("safetensors", "hub", "a folder for Transformers")
    merged = _loaded(model, preset)
    with storage.atomic_path(path) as temporary:
        with not_found():
            merged.export_to_transformers(str(temporary))
        backbone = _loaded(model.backbone, temporary)
        _check(model, type(model)(backbone=backbone, preprocessor=None), sample, str(path))


def _loaded(model: Any, path: Path) -> Any:
    """Returns the task or backbone in a folder, in the precision of the live one; a task is not compiled."""
    options = {"compile": False} if is_hub_task(model) else {}
    try:
        with not_found():
            return type(model).from_preset(str(path), dtype=model.dtype_policy, **options)
    except Exception as error:  # whatever a damaged or incomplete preset raises
        raise TrainingError(f"cannot be loaded: {plain_text(error)}", key="export", received=str(path)) from error


def _check(model: Any, loaded: Any, sample: Any, path: str) -> None:
    """Requires that a loaded model has the outputs of the live one; says so if it writes another text."""
    check_same(model, live_outputs(model, sample), flat_arrays(loaded(sample, training=False)), path)
    if isinstance(model, keras_hub().models.CausalLM) and _text(model, sample) != _text(loaded, sample):
        logger.warning("%s: equal logits, but another text: two tokens are equally likely somewhere in it", path)


def _text(model: Any, sample: Any) -> list[list[int]]:
    """Returns the tokens that a model writes after the first ones of each row of a sample."""
    rows = np.asarray(sample["token_ids"])
    prompt = min(_PROMPT, max(1, rows.shape[1] // 2))
    length = min(prompt + _WRITTEN, rows.shape[1])
    return greedy(model, rows[:, :prompt].tolist(), length, _WRITTEN, None) if length > prompt else []


def _matrices(layer: Any) -> list[Any]:
    """Returns the two matrices of a layer's adapter."""
    return [variable for variable in layer.variables if variable.name.startswith("lora_")]


@contextlib.contextmanager
def _without_alpha(layers: list[Any]) -> Iterator[None]:
    """Inside the block the scales of adapters are part of their matrices."""
    alphas = [layer.lora_alpha for layer in layers]
    for layer in layers:
        layer.lora_kernel_b.assign(layer.lora_kernel_b.value * (layer.lora_alpha / layer.lora_rank))
        layer.lora_alpha = layer.lora_rank
    try:
        yield
    finally:
        for layer, alpha in zip(layers, alphas, strict=True):
            layer.lora_alpha = alpha
