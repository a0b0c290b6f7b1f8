"""Batches of tokens: `text_stream` reads the files of a configuration, tokenizes them once, and packs or pads them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.data.labels import IGNORED
from everstep.data.records import Records, open_records
from everstep.data.stream import OwnRows, Part, Stream
from everstep.data.text.config import TextDataConfig
from everstep.data.text.documents import DocumentReader
from everstep.data.text.plans import BatchPlan, BucketPlan, PackedPlan, Plan
from everstep.data.text.token_store import TokenStore, tokenized
from everstep.data.text.tokenizers import Tokenizer
from everstep.errors import UsageError
from everstep.types import Batch

TOKENS, MASK, SEGMENTS, POSITIONS = "token_ids", "padding_mask", "segment_ids", "positions"
"""The names of the arrays that a model may be given; see `TextStream`."""

PADDED = (TOKENS, MASK)
"""What a model needs for rows of one document."""

PACKED = (TOKENS, MASK, SEGMENTS, POSITIONS)
"""What a model needs for rows of several documents."""


class Pieces(NamedTuple):
    """What rows are made of: documents, or parts of long ones.

    A piece of n tokens takes n - 1 positions of a row: its last token is only a label.

    Attributes:
      starts: Where each piece begins in all tokens.
      lengths: How many positions each takes.
      documents: The document of each.
    """

    starts: np.ndarray
    lengths: np.ndarray
    documents: np.ndarray

    def only(self, which: np.ndarray) -> "Pieces":
        """Returns some of the pieces."""
        return Pieces(*(values[which] for values in self))


class TextStream(Stream):
    """Batches `(inputs, labels)` of tokenized documents.

    `inputs` is a dict of arrays (rows, length): `token_ids`; `padding_mask`, True where a token is; and, to keep the
    documents of a row apart, `segment_ids`, the number of the document in its row from 1 on, 0 for padding, and
    `positions` in the document, from 0 on. Labels are the next tokens of the same document, or `IGNORED`.

    Args:
      store: The tokens.
      pieces: The parts of documents that are used, each once an epoch.
      plan: Which of them each batch has.
      inputs: The names of the arrays in the dict; or one name, and batches have this array instead of a dict.
      padding: The token of positions without text.
      repeat: Whether epoch follows epoch without end.
      files: The files that were read.
      notes: What the log tells about the data.
    """

    def __init__(
        self,
        store: TokenStore,
        pieces: Pieces,
        plan: Plan,
        *,
        inputs: str | Sequence[str] = PACKED,
        padding: int = 0,
        repeat: bool = False,
        files: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(repeat=repeat, batches_per_epoch=len(plan))
        self._store, self._pieces, self._plan = store, pieces, plan
        self._inputs, self._padding, self._files, self._notes = inputs, padding, list(files), list(notes)

    @property
    def files(self) -> Sequence[str]:
        """The files with the texts."""
        return self._files

    @property
    def notes(self) -> Sequence[str]:
        """How many documents there are, and what was done with long and empty ones."""
        return self._notes

    @property
    def reads_rows(self) -> bool:
        """True: rows are gathered by their numbers."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        for number in range(batch, len(self._plan)):
            yield self._gather(self._plan.batch(epoch, number))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on."""
        for number in range(batch, len(self._plan)):
            whole = self._plan.batch(epoch, number)
            yield Part(self._gather(whole.rows(rows(len(whole.sizes)))), len(whole.sizes))

    def _gather(self, plan: BatchPlan) -> Batch:
        """Returns the arrays of a batch."""
        lengths, starts = self._pieces.lengths[plan.pieces], self._pieces.starts[plan.pieces]
        rows = np.repeat(np.arange(len(plan.sizes)), plan.sizes)
        ends = np.cumsum(lengths)
        before = ends - lengths  # positions of the pieces before, over all rows
        first = np.concatenate([[0], np.cumsum(plan.sizes)])[:-1]  # the first piece of each row
        offsets = rows * plan.length + before - before[first][rows]
        positions = np.arange(ends[-1]) - np.repeat(before, lengths)
        source = np.repeat(starts, lengths) + positions
        target = np.repeat(offsets, lengths) + positions

        def placed(values: Any, otherwise: Any, dtype: Any = np.int32) -> np.ndarray:
            array = np.full((len(plan.sizes), plan.length), otherwise, dtype)
            array.reshape(-1)[target] = values
            return array

        following = self._store.tokens[source + 1].astype(np.int32)
        if self._store.counts is not None:
            following = np.where(self._store.counts[source + 1], following, np.int32(IGNORED))
        numbers = np.arange(len(plan.pieces)) - first[rows] + 1  # of the pieces in their rows
        arrays: dict[str, Callable[[], np.ndarray]] = {
            TOKENS: lambda: placed(self._store.tokens[source], self._padding),
            MASK: lambda: placed(True, False, bool),
            SEGMENTS: lambda: placed(np.repeat(numbers, lengths), 0),
            POSITIONS: lambda: placed(positions, 0),
        }
        labels = placed(following, IGNORED)
        if isinstance(self._inputs, str):
            return arrays[self._inputs](), labels
        return {name: arrays[name]() for name in self._inputs}, labels


def text_stream(
    config: TextDataConfig,
    tokenizer: Tokenizer,
    *,
    context: int,
    inputs: str | Sequence[str] | None = None,
    vocabulary: int | None = None,
    records: Records | None = None,
    identity: str = "",
) -> TextStream:
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
    length = _length(config, context)
    if vocabulary is not None and tokenizer.vocabulary > vocabulary:
        raise UsageError(
            f"has {tokenizer.vocabulary:,} tokens, but the vocabulary of the model has {vocabulary:,}",
            key="tokenizer",
            received=config.tokenizer or type(tokenizer).__name__,
            remedy="use the model's own tokenizer, or give the model a larger vocabulary",
        )
    reader = DocumentReader(config, tokenizer)
    if records is None:
        records = open_text(config, reader.columns)
    store = tokenized(records, reader, tokenizer.vocabulary, config.token_cache, identity=identity)
    pieces, notes = cut(store, records, length, config)
    training = bool(config.is_training)
    seed = (config.seed or 0) if training else None
    drop_remainder = training if config.drop_remainder is None else config.drop_remainder
    plan: Plan
    if config.packing:
        plan = PackedPlan(pieces.lengths, length, config.global_batch_size, seed, drop_remainder)
        full = pieces.lengths.sum() / (len(plan.packing) * length)
        notes.append(f"packed into {len(plan.packing):,} rows of {length:,} tokens, {full:.1%} full")
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


def open_text(config: TextDataConfig, columns: Sequence[str]) -> Records:
    """Returns the rows that a configuration names.

    Raises:
      UsageError: It names none, or they cannot be read.
    """
    if not config.input_path:
        raise UsageError("is empty", key="input_path", remedy="name files such as 'data/*.jsonl'")
    if isinstance(config.input_path, dict):
        raise UsageError("expected a path or a list of paths", key="input_path", received=config.input_path)
    return open_records(
        config.input_path, columns=columns, documents=config.documents, array_record=config.array_record
    )


def cut(store: TokenStore, records: Records, length: int, config: TextDataConfig) -> tuple[Pieces, list[str]]:
    """Returns the pieces of all documents, none longer than a row, and what the log tells about them.

    Raises:
      UsageError: A document is too long, or empty, and the configuration refuses those; or all are empty.
    """
    positions = np.maximum(store.lengths - 1, 0)
    notes = [f"{len(positions):,} documents, {int(store.offsets[-1]):,} tokens"]
    long = np.flatnonzero(positions > length)
    if len(long):
        first, tokens = int(long[0]), int(positions[long[0]]) + 1
        if config.long_texts == "refuse":
            raise records.error(
                first,
                f"has {tokens:,} tokens, but a row takes {length + 1:,}; {len(long):,} of {len(positions):,} documents "
                "are too long",
                remedy="set long_texts to split or truncate, or raise sequence_length",
            )
        lost = int((positions[long] - length).sum())
        what = "are split" if config.long_texts == "split" else f"are cut off: {lost:,} tokens are not used"
        notes.append(f"{len(long):,} documents of more than {length + 1:,} tokens {what}")
    number = np.ones(len(positions), np.int64)
    if config.long_texts == "split":
        number = -(-positions // length)  # parts of each document; of empty ones none
    documents = np.repeat(np.arange(len(positions)), number)
    part = np.arange(len(documents)) - np.repeat(np.cumsum(number) - number, number)
    pieces = Pieces(
        store.offsets[:-1][documents] + part * length,
        np.minimum(positions[documents] - part * length, length),
        documents,
    )
    pieces = pieces.only(_predicting(store, pieces))
    empty = np.setdiff1d(np.arange(len(positions)), pieces.documents)
    if len(empty):
        why = "has nothing to predict: it is empty, or no token of it counts in the loss"
        if config.empty_texts == "refuse" or not len(pieces.lengths):
            count = f"; {len(empty):,} of {len(positions):,} documents are like this"
            remedy = "set empty_texts=skip, or remove them" if len(pieces.lengths) else "name files with texts"
            raise records.error(int(empty[0]), why + count, remedy=remedy)
        notes.append(
            f"{len(empty):,} documents with nothing to predict are skipped; the first is {records.where(int(empty[0]))}"
        )
    if not len(pieces.lengths):
        raise UsageError("the files have no documents", key=records.key, received=config.input_path)
    return pieces, notes


def _predicting(store: TokenStore, pieces: Pieces) -> np.ndarray:
    """Returns which pieces have a label that counts."""
    some = pieces.lengths > 0
    if store.counts is not None:
        running = np.concatenate([[0], np.cumsum(store.counts, dtype=np.int64)])
        starts, lengths = pieces.starts[some], pieces.lengths[some]
        some[some] = running[starts + lengths + 1] > running[starts + 1]
    return some


def _length(config: TextDataConfig, context: int) -> int:
    """Returns the length of a row."""
    if config.sequence_length is not None and config.sequence_length > context:
        raise UsageError(
            f"is more than the model's context, {context:,} tokens",
            key="sequence_length",
            received=config.sequence_length,
        )
    return context if config.sequence_length is None else config.sequence_length
