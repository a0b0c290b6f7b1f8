"""`text_stream`: from a configuration to batches of tokens."""

from collections.abc import Sequence
from typing import Any

from everstep.data.records import Records, open_records
from everstep.data.records.datasets import HuggingFace
from everstep.data.text.config import TextDataConfig
from everstep.data.text.documents import DocumentReader
from everstep.data.text.plans import BucketPlan, PackedPlan, Plan
from everstep.data.text.stream import PACKED, PADDED, TextStream, cut
from everstep.data.text.streaming import StreamedText
from everstep.data.text.token_store import tokenized
from everstep.data.text.tokenizers import Tokenizer
from everstep.errors import UsageError, missing_extra


def text_stream(
    config: TextDataConfig,
    tokenizer: Tokenizer,
    *,
    context: int,
    inputs: str | Sequence[str] | None = None,
    vocabulary: int | None = None,
    records: Records | None = None,
    identity: str = "",
) -> TextStream | StreamedText:
    """Returns the stream over the documents that a configuration names.

    Args:
      config: Files, columns, lengths; `is_training` and `seed` are set, as a task's `build_inputs` gets them.
      tokenizer: The tokenizer.
      context: The most tokens that the model takes; the length of rows where the configuration has none.
      inputs: What the model is given, see `TextStream`; None for what the packing needs.
      vocabulary: How many tokens the model knows; None if it is not known.
      records: The rows to read instead of the configuration's files.
      identity: What these rows are, for the cache of tokens.

    Raises:
      UsageError: The configuration, a file or a row cannot be used; names the key, the file and the row.
    """
    length = row_length(config, context)
    if vocabulary is not None and tokenizer.vocabulary > vocabulary:
        raise UsageError(
            f"has {tokenizer.vocabulary:,} tokens, but the vocabulary of the model has {vocabulary:,}",
            key="tokenizer",
            received=config.tokenizer or type(tokenizer).__name__,
            remedy="use the model's own tokenizer, or give the model a larger vocabulary",
        )
    if config.streaming:
        return StreamedText(load_dataset(config), config, tokenizer, length=length, inputs=inputs)
    reader = DocumentReader(config, tokenizer)
    if records is None:
        records, identity = open_text(config, reader.columns)
    store = tokenized(records, reader, tokenizer.vocabulary, config.token_cache, identity=identity)
    pieces, notes = cut(store, records, length, config)
    training = bool(config.is_training)
    seed = (config.seed or 0) if training else None
    drop_remainder = training if config.drop_remainder is None else config.drop_remainder
    plan: Plan
    if config.packing:
        plan = PackedPlan(pieces.lengths, length, config.global_batch_size, seed, drop_remainder)
        full = pieces.lengths.sum() / (len(plan.packing) * length)
        notes.append(f"packed into {len(plan.packing):,} rows of {length:,} tokens, {100 * full:.1f} % full")
    else:
        buckets = [bucket for bucket in sorted(set(config.buckets)) if bucket < length] + [length]
        plan = BucketPlan(pieces.lengths, buckets, config.global_batch_size, seed, drop_remainder)
    if not len(plan):
        rows = len(plan.packing) if isinstance(plan, PackedPlan) else len(pieces.lengths)
        raise UsageError(
            f"the texts fill only {rows:,} rows, and drop_remainder drops the incomplete batch",
            key="global_batch_size",
            received=config.global_batch_size,
            remedy="lower global_batch_size or set drop_remainder=false",
        )
    return TextStream(
        store,
        pieces,
        plan,
        inputs=inputs or (PACKED if config.packing else PADDED),
        padding=tokenizer.padding,
        repeat=training if config.repeat is None else config.repeat,
        files=records.files,
        notes=notes,
    )


def open_text(config: TextDataConfig, columns: Sequence[str]) -> tuple[Records, str]:
    """Returns the rows that a configuration names, and what else than files tells what they are.

    Raises:
      UsageError: It names none, or they cannot be read.
    """
    if config.dataset:
        dataset = load_dataset(config)
        return HuggingFace(dataset, "dataset", columns, config.dataset), str(dataset._fingerprint)
    if not config.input_path:
        raise UsageError("is empty", key="input_path", remedy="name files such as 'data/*.jsonl'")
    if isinstance(config.input_path, dict):
        raise UsageError("expected a path or a list of paths", key="input_path", received=config.input_path)
    rows = open_records(
        config.input_path, columns=columns, documents=config.documents, array_record=config.array_record
    )
    return rows, ""


def load_dataset(config: TextDataConfig) -> Any:
    """Returns the Hugging Face dataset that a configuration names.

    Raises:
      UsageError: `datasets` is not installed, or cannot load it.
    """
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "text", "a Hugging Face dataset") from None
    try:
        return datasets.load_dataset(config.dataset, split=config.dataset_split, streaming=config.streaming)
    except Exception as error:  # of the network, of the file system, of the dataset
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"cannot be loaded: {reason}", key="dataset", received=config.dataset) from error


def row_length(config: TextDataConfig, context: int) -> int:
    """Returns the length of a row.

    Raises:
      UsageError: It is more than the model takes.
    """
    if config.sequence_length is not None and config.sequence_length > context:
        raise UsageError(
            f"is more than the model's context, {context:,} tokens",
            key="sequence_length",
            received=config.sequence_length,
        )
    return context if config.sequence_length is None else config.sequence_length
