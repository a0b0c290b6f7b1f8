"""Hugging Face datasets that are read as a stream: documents are tokenized and put into rows as they come.

Rows are read in blocks, and the documents of a block are shuffled, so a position is the state of the dataset at the
start of a block and a place in it: a resumed run reads one block again, and continues with the same batch. That is as
exact as the state of the dataset is. Nothing checks that a dataset elsewhere is still the same.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.data import randomness
from everstep.data.records import Records, Row
from everstep.data.stream import Stream, skip
from everstep.data.text.config import TextDataConfig
from everstep.data.text.documents import DocumentReader
from everstep.data.text.plans import BatchPlan
from everstep.data.text.stream import PACKED, PADDED, Pieces, cut, gather
from everstep.data.text.token_store import TokenStore
from everstep.data.text.tokenizers import Tokenizer
from everstep.types import Batch

logger = logging.getLogger(__name__)

_LEAST_ROWS = 256  # tokenized at once, also where nothing is shuffled


class Block(Records):
    """Some rows of a stream, in memory.

    Args:
      rows: The rows.
      first: The number of the first one in the stream.
      name: The dataset.
      key: The configuration key that names it, for errors.
    """

    def __init__(self, rows: Sequence[Row], first: int, name: str, key: str) -> None:
        super().__init__(key)
        self._rows, self._first, self._name = rows, first, name

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the first row."""
        return tuple(self._rows[0])

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers."""
        return [self._rows[number] for number in numbers]

    def where(self, number: int) -> str:
        """Returns the dataset, and the number of a row in it."""
        return f"{self._name}, row {self._first + number}"


class _Place(NamedTuple):
    """Where a piece is: the state of the dataset at the start of its block, the block's number, the piece in it."""

    dataset: Any
    block: int
    piece: int

    def mark(self) -> dict[str, Any]:
        """Returns the place as plain values."""
        return {"dataset": self.dataset, "block": self.block, "piece": self.piece}


class StreamedText(Stream):
    """Batches of the documents of a streamed dataset, as those of `TextStream`.

    A row takes a document if it has room for it; with packing, a batch ends before the first document that fits into
    none of its rows.

    Args:
      dataset: A `datasets.IterableDataset`.
      config: Columns, lengths, `shuffle_buffer_size` as the size of blocks.
      tokenizer: The tokenizer.
      length: The length of rows.
      inputs: What the model is given, see `TextStream`.
    """

    def __init__(
        self,
        dataset: Any,
        config: TextDataConfig,
        tokenizer: Tokenizer,
        *,
        length: int,
        inputs: str | Sequence[str] | None = None,
    ) -> None:
        training = bool(config.is_training)
        super().__init__(repeat=training if config.repeat is None else config.repeat)
        self._dataset, self._config, self._tokenizer = dataset, config, tokenizer
        self._reader = DocumentReader(config, tokenizer)
        self._length, self._inputs = length, inputs or (PACKED if config.packing else PADDED)
        self._seed = (config.seed or 0) if training and config.shuffle_buffer_size > 1 else None
        self._block_rows = max(config.shuffle_buffer_size if self._seed is not None else 0, _LEAST_ROWS)
        self._drop_remainder = training if config.drop_remainder is None else config.drop_remainder
        self._mark: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None  # of the epoch that was read to its end
        self._start = dataset.state_dict()

    @property
    def why_not_exact(self) -> str:
        """Why a resumed run might get other batches; see `Stream.why_not_exact`."""
        return (
            "the dataset is streamed, and nothing checks that its files are the same when the run resumes: set "
            "streaming=false to read and check them first"
        )

    @property
    def notes(self) -> Sequence[str]:
        """How documents are shuffled."""
        if self._seed is None:
            return ["documents are read in the order of the stream"]
        return [f"documents are shuffled in blocks of {self._block_rows:,} rows of the stream"]

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; those before it are read, too."""
        batches = self._read_batches(epoch, None)
        skip(batches, batch, batch)
        return batches

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the epoch's batches from a bookmark on."""
        return self._read_batches(epoch, _Place(**bookmark))

    def bookmark(self) -> Any:
        """Returns the place of the first document of the next batch."""
        return self._mark

    def _read_batches(self, epoch: int, start: _Place | None) -> Iterator[Batch]:
        """Yields batches; `_mark` is the place after each."""
        count = self._config.global_batch_size
        rows: list[list[_Piece]] = [[] for _ in range(count)]
        room = np.full(count, self._length)
        for place, piece in self._pieces(epoch, start):
            needed = len(piece.tokens) - 1
            free = np.flatnonzero(room >= needed) if self._config.packing else np.flatnonzero(room == self._length)
            if not len(free):
                self._mark = place.mark()
                yield self._gather(rows)
                rows, room, free = [[] for _ in range(count)], np.full(count, self._length), np.array([0])
            rows[free[0]].append(piece)
            room[free[0]] -= needed
        self._mark = self._end
        used = [row for row in rows if row]
        if used and (len(used) == count or not self._drop_remainder):
            yield self._gather(used)

    def _pieces(self, epoch: int, start: _Place | None) -> Iterator[tuple[_Place, "_Piece"]]:
        """Yields the pieces of all documents from a place on, with their places."""
        place = start or _Place({**self._start, "epoch": epoch}, 0, 0)
        self._dataset.set_epoch(epoch)
        self._dataset.load_state_dict(place.dataset)
        rows, (state, number, first) = iter(self._dataset), place
        while True:
            block = list(itertools.islice(rows, self._block_rows))
            if not block:
                self._end = _Place(state, number, 0).mark()
                return
            pieces = self._cut(Block(block, number * self._block_rows, self._config.dataset, "dataset"))
            order = np.arange(len(pieces))
            if self._seed is not None:
                order = randomness.generator(randomness.seed_of(self._seed, number), epoch).permutation(len(pieces))
            for index in range(first, len(pieces)):
                yield _Place(state, number, index), pieces[order[index]]
            state, number, first = self._dataset.state_dict(), number + 1, 0

    def _cut(self, block: Block) -> list["_Piece"]:
        documents = self._reader.read(block, range(len(block)))
        tokens = np.concatenate([document.tokens for document in documents])
        offsets = np.concatenate([[0], np.cumsum([len(document.tokens) for document in documents])])
        counts = None if self._reader.all_count else np.concatenate([document.counts for document in documents])
        store = TokenStore(tokens, offsets, counts)
        pieces, (_, *notes) = cut(store, block, self._length, self._config, may_be_none=True)
        for note in notes:
            logger.warning("from %s on: %s", block.where(0), note)
        found = []
        for start, length in zip(pieces.starts.tolist(), pieces.lengths.tolist(), strict=True):
            here = slice(start, start + length + 1)
            found.append(_Piece(tokens[here], None if counts is None else counts[here]))
        return found

    def _gather(self, rows: Sequence[Sequence["_Piece"]]) -> Batch:
        every = [piece for row in rows for piece in row]
        sizes = np.array([len(row) for row in rows])
        lengths = np.array([len(piece.tokens) - 1 for piece in every])
        starts = np.cumsum(lengths + 1) - (lengths + 1)
        tokens = np.concatenate([piece.tokens for piece in every])
        counts = None if every[0].counts is None else np.concatenate([piece.counts for piece in every])
        store = TokenStore(tokens, np.array([0, len(tokens)]), counts)
        plan = BatchPlan(self._length, np.arange(len(every)), sizes)
        return gather(store, Pieces(starts, lengths, starts), plan, self._inputs, self._tokenizer.padding)


class _Piece(NamedTuple):
    """The tokens of a part of a document, and which of them count; None if all do."""

    tokens: np.ndarray
    counts: np.ndarray | None
