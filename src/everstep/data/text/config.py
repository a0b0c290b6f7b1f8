"""The data section of a task that reads text. Imports no Keras."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from everstep.data.config import DataConfig
from everstep.errors import Problem


@dataclasses.dataclass
class TextDataConfig(DataConfig):
    """Documents from files, tokenized once, as batches of one length.

    `input_path` names `.jsonl`, `.parquet`, `.csv`, `.tsv`, `.txt` or `.array_record` files, or folders saved by
    Hugging Face's `datasets`. A row is one document: its text, a prompt and its completion, or the messages of a chat.
    """

    _may_change: ClassVar[frozenset[str]] = DataConfig._may_change | {"token_cache"}

    dataset: str = ""
    """A dataset of Hugging Face's `datasets`, by its name or folder, instead of `input_path`."""

    dataset_split: str = "train"
    """Which part of `dataset` to read."""

    streaming: bool = False
    """Whether `dataset` is read as a stream, without downloading it first; a resumed run may then differ slightly."""

    text_column: str = "text"
    """The column that holds a document's text."""

    prompt_column: str = ""
    """The column that holds a prompt; `completion_column` follows it. Empty: rows are texts or messages."""

    completion_column: str = ""
    """The column that holds what is to be predicted after the prompt."""

    messages_column: str = ""
    """The column that holds the messages of a chat, a list of `{role, content}`. Empty: rows are texts or prompts."""

    chat_template: str = ""
    """How messages become text: a Jinja template as in Hugging Face, or the path of one (`.jinja`, or a
    `tokenizer_config.json` that has one). Empty: a simple one."""

    loss_on: Literal["completions", "all"] = "completions"
    """Which tokens of prompts and chats count in the loss: completions and the assistant's messages, or all."""

    documents: Literal["file", "paragraph", "line"] = "file"
    """What one document of a plain text file is; blank lines separate paragraphs."""

    array_record: Literal["json", "text"] = "json"
    """What a record of an ArrayRecord file is: a JSON object with columns, or a text."""

    tokenizer: str = ""
    """`bytes`, or the path of a `tokenizer.json`. Empty: the tokenizer that belongs to the model."""

    add_start: bool | None = None
    """Whether documents begin with the tokenizer's start token. None: if it has one."""

    add_end: bool | None = None
    """Whether documents end with the tokenizer's end token. None: if it has one."""

    sequence_length: Annotated[int, Ge(1)] | None = None
    """Tokens in a row of a batch. None: the model's context."""

    packing: bool = False
    """Whether several documents share a row. Attention and labels do not cross from one into another."""

    buckets: list[int] = dataclasses.field(default_factory=list)
    """Lengths to which rows are padded, besides `sequence_length`: a batch has rows of similar length. Each length is
    compiled once. Not with packing."""

    long_texts: Literal["refuse", "split", "truncate"] = "refuse"
    """What happens to documents longer than a row: an error, several rows, or the end is left out. The log says how
    many there are."""

    empty_texts: Literal["skip", "refuse"] = "skip"
    """What happens to documents with nothing to predict. The log says how many there are."""

    token_cache: str = ""
    """The folder that keeps tokenized documents for later runs. Empty: below `$EVERSTEP_CACHE_DIR`."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if self.tfds_name and not self.input_path:
            yield Problem(
                "tfds_name", "is not read as text", received=self.tfds_name, remedy="use input_path or dataset"
            )
        if self.input_path and self.dataset:
            yield Problem("dataset", "but input_path is set, too", received=self.dataset, remedy="set one of them")
        if isinstance(self.input_path, dict):
            yield Problem("input_path", "expected a path or a list of paths", received=self.input_path)
        if bool(self.prompt_column) != bool(self.completion_column):
            missing = "completion_column" if self.prompt_column else "prompt_column"
            yield Problem(missing, "is empty, but a prompt and its completion belong together")
        if self.prompt_column and self.messages_column:
            remedy = "set prompt_column or messages_column"
            yield Problem("messages_column", "but prompt_column is set, too", self.messages_column, remedy=remedy)
        if self.streaming and not self.dataset:
            yield Problem("streaming", "only a dataset is read as a stream", received=True, remedy="set dataset")
        if self.streaming and self.buckets:
            yield Problem("buckets", "the lengths in a stream are not known beforehand", received=self.buckets)
        if self.buckets and self.packing:
            yield Problem("buckets", "packed rows have one length", received=self.buckets, remedy="set packing=false")
        if any(length < 1 for length in self.buckets):
            yield Problem("buckets", "must be at least 1", received=self.buckets)
