"""Batches of tokens, gathered from tokenized documents: packed, or padded to one of a few lengths."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.data.labels import IGNORED
from everstep.data.records import Records
from everstep.data.stream import OwnRows, Part, Stream
from everstep.data.text.config import TextDataConfig
from everstep.data.text.plans import BatchPlan, Plan
from everstep.data.text.token_store import TokenStore
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
        return gather(self._store, self._pieces, plan, self._inputs, self._padding)


def gather(store: TokenStore, pieces: Pieces, plan: BatchPlan, inputs: str | Sequence[str], padding: int) -> Batch:
    """Returns the arrays of a batch; the arguments are those of `TextStream`."""
    lengths, starts = pieces.lengths[plan.pieces], pieces.starts[plan.pieces]
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

    following = store.tokens[source + 1].astype(np.int32)
    if store.counts is not None:
        following = np.where(store.counts[source + 1], following, np.int32(IGNORED))
    numbers = np.arange(len(plan.pieces)) - first[rows] + 1  # of the pieces in their rows
    arrays: dict[str, Callable[[], np.ndarray]] = {
        TOKENS: lambda: placed(store.tokens[source], padding),
        MASK: lambda: placed(True, False, bool),
        SEGMENTS: lambda: placed(np.repeat(numbers, lengths), 0),
        POSITIONS: lambda: placed(positions, 0),
    }
    labels = placed(following, IGNORED)
    if isinstance(inputs, str):
        return arrays[inputs](), labels
    return {name: arrays[name]() for name in inputs}, labels


def cut(
    store: TokenStore, records: Records, length: int, config: TextDataConfig, *, may_be_none: bool = False
) -> tuple[Pieces, list[str]]:
    """Returns the pieces of all documents, none longer than a row, and what the log tells about them.

    Args:
      store: The tokens of the documents.
      records: Their rows, for errors.
      length: The length of a row.
      config: What happens to long and empty documents.
      may_be_none: Whether all documents may be empty.

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
        if config.empty_texts == "refuse" or not (len(pieces.lengths) or may_be_none):
            count = f"; {len(empty):,} of {len(positions):,} documents are like this"
            remedy = "set empty_texts=skip, or remove them" if len(pieces.lengths) else "name files with texts"
            raise records.error(int(empty[0]), why + count, remedy=remedy)
        notes.append(
            f"{len(empty):,} documents with nothing to predict are skipped; the first is {records.where(int(empty[0]))}"
        )
    if not len(pieces.lengths) and not may_be_none:
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
