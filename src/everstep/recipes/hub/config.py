"""The configuration of tasks with KerasHub models. Imports no Keras."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt

from everstep import Config, DataConfig, TaskConfig
from everstep.data.images import ImageDataConfig
from everstep.data.text import TextDataConfig
from everstep.errors import Problem, UsageError
from everstep.task import GenerationConfig
from everstep.task.optim import Patterns, patterns


@dataclasses.dataclass
class LoraConfig(Config):
    """Low-rank adapters: the backbone stays as it is, and small matrices beside some of its layers are trained."""

    rank: Annotated[int, Ge(1)] = 8
    """The rank of the matrices: how much they can learn, and how large they are."""
    targets: list[str] = dataclasses.field(default_factory=list)
    """The layers that get adapters, by name, such as `query` and `value`. Empty: those that KerasHub chooses for the
    model, the queries and values of attention."""
    alpha: Annotated[float, Gt(0)] | None = None
    """What an adapter adds is multiplied by `alpha / rank`. None: by 1."""


@dataclasses.dataclass
class HubTaskConfig(TaskConfig):
    """What tasks with a KerasHub model share: where it comes from, and what of it is trained."""

    model: None = None
    """Not used: the preset says what the model is like."""
    preset: str = ""
    """The model: a directory that `save_to_preset` has written, or a name or handle that KerasHub downloads, such as
    `gpt2_base_en` or `hf://user/model`."""
    load_weights: bool = True
    """Whether to start from the preset's weights; False for its architecture with random ones, to pretrain it."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The type of the model's weights, also of adapters. None: float32; what it computes in is set by `runtime`."""
    lora: LoraConfig | None = None
    """Trains adapters instead of the backbone; what is not in the backbone, such as a classifier's head, is trained."""
    quantize: Literal["int8", "int4", "float8"] | None = None
    """Stores the dense layers of the backbone in this type, and trains adapters beside them: needs `lora`."""
    freeze: Patterns = dataclasses.field(default_factory=list)
    """Regular expressions for names of variables that are not trained: `embedding`, `transformer_layer_[0-3]/`."""

    def _problems(self) -> Iterator[Problem]:
        yield from patterns(self, "freeze")
        if self.quantize == "float8":
            remedy = "quantize to int8 or int4; runtime.float8=true trains a whole model in float8"
            yield Problem("quantize", "Keras has no adapters beside layers in float8", received="float8", remedy=remedy)
        elif self.quantize and self.lora is None:
            text, remedy = f"weights in {self.quantize} cannot be trained", "set task.lora.rank to train adapters"
            yield Problem("quantize", text, received=self.quantize, remedy=remedy)


@dataclasses.dataclass
class CausalLMConfig(HubTaskConfig):
    """Predicts the next token of texts."""

    _may_change: ClassVar[frozenset[str]] = HubTaskConfig._may_change | {"generation"}

    train_data: TextDataConfig = dataclasses.field(
        default_factory=lambda: TextDataConfig(global_batch_size=8, is_training=True)
    )
    """Texts to train on."""
    validation_data: TextDataConfig = dataclasses.field(
        default_factory=lambda: TextDataConfig(global_batch_size=8, is_training=False)
    )
    """Texts to evaluate on."""
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    """How the model continues prompts."""
    loss_chunk_tokens: Annotated[int, Ge(1)] | None = None
    """Computes logits, loss and their gradients for so many tokens at a time, without storing logits in float32; None
    for Keras's loss."""


@dataclasses.dataclass
class ClassifierConfig(HubTaskConfig):
    """What classifiers share: their classes."""

    classes: list[str] = dataclasses.field(default_factory=list)
    """The names of the classes. Labels in the data are names, or numbers from 0 on."""
    new_head: bool = True
    """Whether the last layer starts anew; False to continue with that of the preset, which has as many classes."""

    def check_classes(self) -> None:
        """Checks that there are classes; called before a model is built.

        Raises:
          UsageError: There are fewer than two, or one twice.
        """
        if len(self.classes) < 2:
            raise UsageError("name at least two", key="task.classes", received=self.classes)
        if len(set(self.classes)) < len(self.classes):
            raise UsageError("has a name twice", key="task.classes", received=self.classes)


@dataclasses.dataclass
class LabelledTextConfig(DataConfig):
    """Texts with a class each. `input_path` names `.jsonl`, `.csv`, `.tsv` or `.parquet` files."""

    text_column: str = "text"
    """The column that holds the text."""
    label_column: str = "label"
    """The column that holds the class, its name or its number."""
    sequence_length: Annotated[int, Ge(3)] | None = None
    """Tokens in a row of a batch. None: the length of the preset."""
    long_texts: Literal["refuse", "truncate"] = "refuse"
    """What happens to texts longer than a row: an error, or their end is left out."""


@dataclasses.dataclass
class TextClassifierConfig(ClassifierConfig):
    """Classifies texts."""

    train_data: LabelledTextConfig = dataclasses.field(
        default_factory=lambda: LabelledTextConfig(global_batch_size=16, is_training=True)
    )
    """Texts to train on."""
    validation_data: LabelledTextConfig = dataclasses.field(
        default_factory=lambda: LabelledTextConfig(global_batch_size=16, is_training=False)
    )
    """Texts to evaluate on."""


@dataclasses.dataclass
class ImageClassifierConfig(ClassifierConfig):
    """Classifies images in files."""

    train_data: ImageDataConfig = dataclasses.field(
        default_factory=lambda: ImageDataConfig(global_batch_size=32, is_training=True, size=None)
    )
    """Images to train on. If `size` is not set, they have the size of the preset."""
    validation_data: ImageDataConfig = dataclasses.field(
        default_factory=lambda: ImageDataConfig(global_batch_size=32, is_training=False, size=None)
    )
    """Images to evaluate on. If `size` is not set, they have the size of those to train on."""
