"""KerasHub models from presets, with errors that say what is wrong with one."""

import json
import os
from pathlib import Path
from typing import Any

import keras

from everstep.engine import keras_hub, not_found
from everstep.errors import UsageError, nearest, plain_text
from everstep.recipes.hub.config import HubTaskConfig

KEY = "task.preset"

WHAT = {
    "CausalLM": "a causal language model",
    "TextClassifier": "a text classifier",
    "ImageClassifier": "an image classifier",
}
"""The kinds of models, by the name of their class in `keras_hub.models`."""


def load_model(kind: str, config: HubTaskConfig, **arguments: Any) -> Any:
    """Returns the model of a preset, not compiled.

    Only a preset that is not on this machine is downloaded.

    Args:
      kind: One of `WHAT`.
      config: Names the preset.
      **arguments: Further ones of `from_preset`, such as `num_classes`.

    Raises:
      UsageError: There is no such preset, it is of another kind, or it cannot be loaded or downloaded.
    """
    preset = check_preset(kind, config.preset)
    if config.dtype is not None:
        arguments["dtype"] = config.dtype
    try:
        with not_found():
            cls = getattr(keras_hub().models, kind)
            model = cls.from_preset(preset, load_weights=config.load_weights, **arguments)
    except UsageError:
        raise
    except Exception as error:  # of files, of the network, of Keras: a preset can be wrong in many ways
        raise _not_loaded(config.preset, error) from error
    _check_tokenizer(model, config.preset)
    return model


def check_preset(kind: str, preset: str) -> str:
    """Returns the preset, a directory as an absolute path.

    Raises:
      UsageError: It is neither a directory with a preset nor a name or handle that KerasHub knows, or of another kind.
    """
    if not preset:
        remedy = "name a directory written by save_to_preset, or a preset of KerasHub, such as gpt2_base_en"
        raise UsageError("is required", key=KEY, remedy=remedy)
    known = keras_hub().models
    if os.path.isdir(preset):
        _check_kind(kind, preset, _backbone_in(Path(preset)))
        return os.path.abspath(preset)
    if "://" in preset:
        return preset
    every = known.Backbone.presets
    if preset not in every:
        is_path = os.path.exists(preset) or os.sep in preset or preset.startswith(".")
        remedy = "name a directory written by save_to_preset" if is_path else nearest(preset, _of_kind(kind))
        reason = "is no directory" if is_path else "is no directory here, and no preset of KerasHub"
        raise UsageError(reason, key=KEY, received=preset, remedy=remedy)
    if preset not in _of_kind(kind):
        raise UsageError(f"is not {WHAT[kind]}", key=KEY, received=preset, remedy=nearest(preset, _of_kind(kind)))
    return preset


def _of_kind(kind: str) -> list[str]:
    """Returns the names of KerasHub's presets of a kind."""
    models = keras_hub().models
    others = models.Seq2SeqLM.presets if kind == "CausalLM" else {}  # a subclass, with an encoder
    return sorted(set(getattr(models, kind).presets) - set(others))


def _backbone_in(directory: Path) -> type | None:
    """Returns the class of the backbone in a directory; None for another format than Keras's, which KerasHub converts.

    Raises:
      UsageError: It holds no preset.
    """
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        lacks = "has no config.json" if isinstance(error, FileNotFoundError) else f"has no valid config.json: {error}"
        remedy = "name a directory written by save_to_preset"
        raise UsageError(f"is not a preset: it {lacks}", key=KEY, received=str(directory), remedy=remedy) from None
    return keras.saving.get_registered_object(config["registered_name"]) if "registered_name" in config else None


def _check_kind(kind: str, preset: str, backbone: type | None) -> None:
    models = keras_hub().models
    classes = [one for one in vars(models).values() if isinstance(one, type) and issubclass(one, getattr(models, kind))]
    fitting = [getattr(one, "backbone_cls", None) for one in classes if not issubclass(one, models.Seq2SeqLM)]
    if backbone is not None and backbone not in fitting:
        raise UsageError(
            f"is a preset of {backbone.__name__}, of which KerasHub has no {kind}",
            key=KEY,
            received=preset,
            remedy=f"name a preset of {WHAT[kind]}",
        )


def _check_tokenizer(model: Any, preset: str) -> None:
    """Refuses a tokenizer with tokens that the model does not know."""
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    known = getattr(model.backbone, "vocabulary_size", None)
    if tokenizer is None or known is None:
        return
    found = int(tokenizer.vocabulary_size())
    if found > known:
        raise UsageError(
            f"its tokenizer has {found:,} tokens, but its model knows {known:,}",
            key=KEY,
            received=preset,
            remedy="save the model with the tokenizer that it was trained with",
        )


def _not_loaded(preset: str, error: Exception) -> UsageError:
    reason = plain_text(error).partition(". ")[0]
    if os.path.isdir(preset):
        return UsageError(f"cannot be loaded: {reason}", key=KEY, received=preset)
    return UsageError(
        f"cannot be downloaded: {type(error).__name__}: {reason}",
        key=KEY,
        received=preset,
        remedy="check the network and your access; or save the preset elsewhere, and name its directory",
    )
