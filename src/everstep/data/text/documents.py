"""From rows to documents: the text of each row as tokens, and which of them count in the loss."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from everstep.data.records import Records, Row
from everstep.data.text.chat import ChatTemplate, Piece
from everstep.data.text.config import TextDataConfig
from everstep.data.text.tokenizers import Tokenizer
from everstep.errors import UsageError


class Document(NamedTuple):
    """A tokenized row.

    Attributes:
      tokens: Its tokens, with start and end.
      counts: For each token whether its prediction counts in the loss; None if all do.
    """

    tokens: np.ndarray
    counts: np.ndarray | None


class DocumentReader:
    """Tokenizes the rows of files.

    Args:
      config: Which columns hold what.
      tokenizer: The tokenizer.

    Raises:
      UsageError: The chat template is not one, or the tokenizer lacks a token that the configuration wants.
    """

    def __init__(self, config: TextDataConfig, tokenizer: Tokenizer) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._start = _special(config.add_start, tokenizer.start, "add_start")
        self._end = _special(config.add_end, tokenizer.end, "add_end")
        self._template: ChatTemplate | None = None
        if config.messages_column:
            names = {token: name for name, token in tokenizer.specials.items()}
            known = {"bos_token": tokenizer.start, "eos_token": tokenizer.end, "pad_token": tokenizer.padding}
            tokens = {name: names.get(token, "") for name, token in known.items() if token is not None}
            self._template = ChatTemplate(config.chat_template, tokens)

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        config = self._config
        if config.messages_column:
            return [config.messages_column]
        return [config.prompt_column, config.completion_column] if config.prompt_column else [config.text_column]

    @property
    def all_count(self) -> bool:
        """Whether every token counts in the loss."""
        return self._config.loss_on == "all" or self.columns == [self._config.text_column]

    @property
    def fingerprint(self) -> str:
        """A digest of everything that determines the tokens of a row."""
        template = self._template.source if self._template else ""
        parts = [self.columns, template, self._start, self._end, self.all_count, self._tokenizer.fingerprint]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def read(self, records: Records, numbers: Sequence[int]) -> list[Document]:
        """Returns the documents of some rows.

        Raises:
          UsageError: A row is not as the configuration says; names its file, and its line or number.
        """
        rows = zip(numbers, records.read(numbers), strict=True)
        pieces = [self._pieces(records, number, row) for number, row in rows]
        encode: Callable[[Sequence[str]], list[np.ndarray]]
        encode = self._tokenizer.encode_special if self._template else self._tokenizer.encode
        encoded = iter(encode([piece.text for document in pieces for piece in document]))
        return [self._document([(next(encoded), piece.counts) for piece in document]) for document in pieces]

    def _document(self, parts: Sequence[tuple[np.ndarray, bool]]) -> Document:
        ended = parts[-1][0][-1:].tolist() == [self._end] if parts else False  # a template may write the end itself
        start = [] if self._start is None else [(np.array([self._start]), False)]
        end = [] if self._end is None or ended or not parts else [(np.array([self._end]), parts[-1][1])]
        every = [*start, *parts, *end]
        tokens = np.concatenate([np.zeros(0, np.int64), *(tokens for tokens, _ in every)])
        if self.all_count:
            return Document(tokens, None)
        return Document(tokens, np.concatenate([np.zeros(0, bool), *(np.full(len(t), counts) for t, counts in every)]))

    def _pieces(self, records: Records, number: int, row: Row) -> list[Piece]:
        values = [records.value(number, row, column) for column in self.columns]
        if self._template is not None:
            try:
                return self._template.pieces(values[0])
            except ValueError as error:
                raise records.error(number, f"column {self.columns[0]!r}: {error}") from None
        for column, value in zip(self.columns, values, strict=True):
            if not isinstance(value, str):
                kind = "nothing" if value is None else f"a {type(value).__name__}"
                raise records.error(number, f"column {column!r} holds {kind}, not a text")
        texts = [Piece(value, counts) for value, counts in zip(values, (len(values) == 1, True), strict=False)]
        return [piece for piece in texts if piece.text]


def _special(wanted: bool | None, token: int | None, key: str) -> int | None:
    if wanted and token is None:
        raise UsageError("the tokenizer has no such token", key=key, received=True, remedy="set it to false")
    return None if wanted is False else token
