"""Tiny KerasHub presets: directories as `save_to_preset` writes them, with random weights and a vocabulary made here.

    preset = tiny_causal_lm(tmp_path / "gpt2")                        # 30,000 parameters
    preset = tiny_causal_lm(tmp_path / "llama", family="llama3")      # rotary positions
    preset = tiny_text_classifier(tmp_path / "bert")
    preset = tiny_image_classifier(tmp_path / "vit")

The weights and vocabularies are the same in every process. Each maker takes about a second; share what it makes.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sentencepiece
import tokenizers

from everstep.engine import keras_hub, not_found

TEXT = (
    "the quick brown fox jumps over the lazy dog",
    "a slow green turtle walks under the old bridge",
    "the dog and the fox sleep in the warm sun",
    "one two three four five six seven eight nine ten",
    "she sells sea shells by the sea shore",
    "how much wood would a woodchuck chuck",
    "all that glitters is not gold",
    "the rain in spain stays mainly in the plain",
)
"""What the vocabularies are made from, and enough to fine-tune a tiny model on."""

CONTEXT = 64
"""The longest sequence of the tiny text models, in tokens."""

IMAGE = (16, 16, 3)
"""The shape of the images of the tiny image models."""

_MERGES = 64
_SEED = 5


def tiny_causal_lm(directory: Path | str, family: str = "gpt2", **shape: Any) -> str:
    """Writes a preset of a causal language model with its tokenizer; returns its path.

    Args:
      directory: The directory to write, which must not exist.
      family: `gpt2`, `opt` and `bloom` have learned or linear positions; `llama3`, `qwen`, `mistral` and `gemma`
        rotary ones. `mistral` and `gemma` have SentencePiece vocabularies, the others byte pairs.
      **shape: Arguments of the backbone to replace, such as `dropout=0.1` or `vocabulary_size=1000`.
    """
    hub = keras_hub()
    name, make_tokenizer, default = _CAUSAL[family]
    tokenizer = make_tokenizer(getattr(hub.models, f"{name}Tokenizer"))
    preprocessor = getattr(hub.models, f"{name}CausalLMPreprocessor")(tokenizer, sequence_length=CONTEXT)
    arguments = {"vocabulary_size": tokenizer.vocabulary_size(), "dropout": 0.0, **_SIZE, **default, **shape}
    return _save(directory, f"{name}CausalLM", f"{name}Backbone", arguments, preprocessor)


def tiny_text_classifier(directory: Path | str, family: str = "bert", num_classes: int = 2, **shape: Any) -> str:
    """Writes a preset of a text classifier with its tokenizer; returns its path.

    Args:
      directory: The directory to write, which must not exist.
      family: `bert` or `distil_bert`, with a vocabulary of word pieces; `roberta`, with byte pairs.
      num_classes: The number of classes.
      **shape: Arguments of the backbone to replace.
    """
    hub = keras_hub()
    name, make_tokenizer = _CLASSIFIERS[family]
    tokenizer = make_tokenizer(getattr(hub.models, f"{name}Tokenizer"))
    preprocessor = getattr(hub.models, f"{name}TextClassifierPreprocessor")(tokenizer, sequence_length=CONTEXT)
    arguments = {
        "vocabulary_size": tokenizer.vocabulary_size(),
        "dropout": 0.0,
        "num_heads": 2,
        "max_sequence_length": CONTEXT,
        **_SIZE,
        **shape,
    }
    return _save(
        directory, f"{name}TextClassifier", f"{name}Backbone", arguments, preprocessor, num_classes=num_classes
    )


def tiny_image_classifier(directory: Path | str, family: str = "vit", num_classes: int = 2, **shape: Any) -> str:
    """Writes a preset of an image classifier, with the scaling of its images; returns its path.

    Args:
      directory: The directory to write, which must not exist.
      family: `vit`; or `resnet`, with convolutions and batch normalization.
      num_classes: The number of classes.
      **shape: Arguments of the backbone to replace.
    """
    hub = keras_hub()
    name, default = _IMAGES[family]
    converter = getattr(hub.layers, f"{name}ImageConverter")(image_size=IMAGE[:2], scale=1 / 255)
    preprocessor = getattr(hub.models, f"{name}ImageClassifierPreprocessor")(converter)
    arguments = {"image_shape": IMAGE, **default, **shape}
    return _save(
        directory, f"{name}ImageClassifier", f"{name}Backbone", arguments, preprocessor, num_classes=num_classes
    )


def _save(
    directory: Path | str, task: str, backbone: str, arguments: dict[str, Any], preprocessor: Any, **more: Any
) -> str:
    """Creates the model with weights that are the same on every backend, and writes it."""
    models = keras_hub().models
    model = getattr(models, task)(backbone=getattr(models, backbone)(**arguments), preprocessor=preprocessor, **more)
    generator = np.random.default_rng(_SEED)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            weight.assign(generator.normal(scale=0.2, size=weight.shape).astype("float32"))
        else:  # biases and scales: zeros and ones, but ViT draws biases close to 0
            weight.assign(np.round(keras.ops.convert_to_numpy(weight)))
    with not_found():
        model.save_to_preset(str(directory))
    return str(directory)


# -- vocabularies -----------------------------------------------------------------------------------------------------


def _byte_pairs(*special: str) -> Callable[[Any], Any]:
    """Returns a function that creates a tokenizer of this class, with all bytes and some merges as vocabulary."""

    def make(tokenizer: Any) -> Any:
        learned = tokenizers.Tokenizer(tokenizers.models.BPE())
        learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=len(alphabet) + _MERGES, initial_alphabet=sorted(alphabet), show_progress=False
        )
        learned.train_from_iterator(TEXT, trainer)
        found = json.loads(learned.to_str())["model"]
        last = {token: len(found["vocab"]) + index for index, token in enumerate(special)}  # 0 pads, and ends nothing
        return tokenizer({**found["vocab"], **last}, [" ".join(pair) for pair in found["merges"]])

    return make


def _sentence_pieces(tokenizer: Any, **special: Any) -> Any:
    """Creates a tokenizer of this class, with a vocabulary of SentencePiece."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=file,
        vocab_size=100,
        model_type="bpe",
        byte_fallback=False,
        num_threads=1,
        minloglevel=2,
        **special,
    )
    return tokenizer(file.getvalue())


def _mistral(tokenizer: Any) -> Any:
    return _sentence_pieces(tokenizer, unk_id=0, bos_id=1, eos_id=2)


def _gemma(tokenizer: Any) -> Any:
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    return _sentence_pieces(tokenizer, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", **ids)


def _word_pieces(tokenizer: Any) -> Any:
    """Creates a tokenizer of this class, with the words of the text and all letters as vocabulary."""
    words = sorted({word for line in TEXT for word in line.split()})
    letters = sorted({letter for word in words for letter in word})
    pieces = [*letters, *(f"##{letter}" for letter in letters), *(word for word in words if len(word) > 1)]
    return tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces], lowercase=True)


# -- shapes -----------------------------------------------------------------------------------------------------------

_SIZE = {"num_layers": 2, "hidden_dim": 32, "intermediate_dim": 64}
_LEARNED = {"num_heads": 2, "max_sequence_length": CONTEXT}
_ROTARY = {"num_query_heads": 2, "num_key_value_heads": 1}

_LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")

_CAUSAL: dict[str, tuple[str, Callable[[Any], Any], dict[str, Any]]] = {
    # Transformers, and so KerasHub, takes the inner width of GPT-2 for four times the outer one.
    "gpt2": ("GPT2", _byte_pairs("<|endoftext|>"), {**_LEARNED, "intermediate_dim": 128}),
    "opt": ("OPT", _byte_pairs("<pad>", "</s>"), _LEARNED),
    "bloom": ("Bloom", _byte_pairs("<unk>", "<s>", "</s>", "<pad>"), {"num_heads": 2}),
    "llama3": ("Llama3", _byte_pairs(*_LLAMA3), _ROTARY),
    "qwen": ("Qwen", _byte_pairs("<|endoftext|>", "<|im_start|>", "<|im_end|>"), _ROTARY),
    "mistral": ("Mistral", _mistral, _ROTARY),
    "gemma": ("Gemma", _gemma, {**_ROTARY, "head_dim": 16}),
}

_CLASSIFIERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bert": ("Bert", _word_pieces),
    "distil_bert": ("DistilBert", _word_pieces),
    "roberta": ("Roberta", _byte_pairs("<s>", "<pad>", "</s>", "<mask>")),
}

_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {"patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}),
    "resnet": (
        "ResNet",
        {
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [3],
            "stackwise_num_filters": [64, 16],
            "stackwise_num_blocks": [1, 1],
            "stackwise_num_strides": [1, 2],
            "block_type": "basic_block",
        },
    ),
}
