"""Tokenizers: from texts to numbers. Bytes need nothing; others are a file, or come with a KerasHub preset."""

import abc
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import UsageError, missing_extra

BYTES = "bytes"
"""The name of the tokenizer of bytes in a configuration."""

_END_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "<end>", "[SEP]")
_START_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<start>", "[CLS]")
_PADDING_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")


class Tokenizer(abc.ABC):
    """Turns texts into tokens, on the host.

    Attributes:
      vocabulary: How many tokens there are.
      start: The token that begins a document; None if it has none.
      end: The token that ends a document; None if it has none.
      padding: The token of positions without text.
      specials: The tokens that a chat template may name, by their text.
    """

    vocabulary: int
    start: int | None = None
    end: int | None = None
    padding: int = 0
    specials: Mapping[str, int] = {}

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the tokens of each text, without start and end; special tokens in a text are plain text."""

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens; special tokens are left out."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a short text that is another one whenever `encode` would return other tokens."""

    def encode_special(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the tokens of each text, in which the names of special tokens are these tokens."""
        if not self.specials:
            return self.encode(texts)
        names = sorted(self.specials, key=len, reverse=True)
        border = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        split = [[part for part in border.split(text) if part] for text in texts]
        plain = iter(self.encode([part for parts in split for part in parts if part not in self.specials]))
        found = []
        for parts in split:
            tokens = [np.array([self.specials[part]]) if part in self.specials else next(plain) for part in parts]
            found.append(np.concatenate([np.zeros(0, np.int64), *tokens]))
        return found


class ByteTokenizer(Tokenizer):
    """The bytes of a text in UTF-8: tokens 0 to 255, then one for the end of a document and one for padding."""

    vocabulary = 258
    end = 256
    padding = 257
    specials = {"<|end|>": 256}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the bytes of each text."""
        return [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text; bytes that are not UTF-8 become �."""
        return bytes(token for token in map(int, tokens) if token < 256).decode("utf-8", "replace")

    @property
    def fingerprint(self) -> str:
        """The name of the tokenizer: it has no vocabulary that could change."""
        return BYTES


class FileTokenizer(Tokenizer):
    """A tokenizer of the package `tokenizers`, from its JSON file.

    Start, end and padding are found by their usual names, such as `<s>`, `</s>` and `<pad>`.

    Args:
      path: A `tokenizer.json`.
      key: The configuration key that names it, for errors.

    Raises:
      UsageError: The file cannot be read.
    """

    def __init__(self, path: str, key: str = "tokenizer") -> None:
        try:
            import tokenizers
        except ImportError:
            raise missing_extra("tokenizers", "text", "a tokenizer's JSON file") from None
        try:
            content = Path(path).read_text("utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", key=key, received=path) from None
        except Exception as error:  # the package raises plain exceptions
            reason = (str(error).splitlines() or [""])[0]
            raise UsageError(f"is not a tokenizer: {reason}", key=key, received=path) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
        added = json.loads(content).get("added_tokens") or []
        self.specials = {token["content"]: int(token["id"]) for token in added}
        self.vocabulary = max([*self._tokenizer.get_vocab().values(), *self.specials.values(), -1]) + 1
        self.start, self.end, padding = (self._named(names) for names in (_START_NAMES, _END_NAMES, _PADDING_NAMES))
        self.padding = padding if padding is not None else self.end or 0
        # `encode` must not find special tokens in a document: a text about tokens would end in its middle.
        self._tokenizer.encode_special_tokens = True

    def _named(self, names: Sequence[str]) -> int | None:
        known = (self._tokenizer.token_to_id(name) for name in names)
        return next((token for token in known if token is not None), None)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the tokens of each text; all cores work."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int64) for encoding in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return str(self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True))

    @property
    def fingerprint(self) -> str:
        """A digest of the file."""
        return self._fingerprint


class KerasHubTokenizer(Tokenizer):
    """The tokenizer of a KerasHub preset.

    Args:
      tokenizer: A `keras_hub.models.Tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = int(tokenizer.vocabulary_size())
        self.start, self.end = getattr(tokenizer, "start_token_id", None), getattr(tokenizer, "end_token_id", None)
        self.padding = int(getattr(tokenizer, "pad_token_id", None) or 0)
        names = [str(name) for name in tokenizer.special_tokens if name]
        self.specials = {name: int(tokenizer.token_to_id(name)) for name in names}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the tokens of each text."""
        if not texts:
            return []
        found = self._tokenizer.tokenize(list(texts))
        rows = found.to_list() if hasattr(found, "to_list") else found  # a ragged tensor, or lists
        return [np.asarray(row, np.int64).reshape(-1) for row in rows]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        special = {self.start, self.end, self.padding}
        found = self._tokenizer.detokenize([int(token) for token in tokens if int(token) not in special])
        return found if isinstance(found, str) else str(np.asarray(found).item())

    @property
    def fingerprint(self) -> str:
        """A digest of the configuration and the vocabulary."""
        digest = hashlib.sha256(json.dumps(self._tokenizer.get_config(), sort_keys=True, default=str).encode())
        for part in (self._tokenizer.get_vocabulary(), getattr(self._tokenizer, "merges", None) or []):
            digest.update(repr(part).encode())
        return digest.hexdigest()[:16]


def make_tokenizer(name: str, own: Any = None, key: str = "tokenizer") -> Tokenizer:
    """Returns the tokenizer that a configuration names.

    Args:
      name: `bytes`, the path of a `tokenizer.json`, or empty for the model's own.
      own: The model's own tokenizer: a `Tokenizer`, one of KerasHub, or None if it has none.
      key: The configuration key, for errors.

    Raises:
      UsageError: There is no such tokenizer.
    """
    if name == BYTES:
        return ByteTokenizer()
    if name:
        if not name.endswith(".json"):
            remedy = f"name {BYTES!r}, or a tokenizer.json"
            raise UsageError("is no known tokenizer", key=key, received=name, remedy=remedy)
        return FileTokenizer(name, key)
    if own is None:
        raise UsageError(
            "is empty, and the model has no tokenizer", key=key, remedy=f"name {BYTES!r} or a tokenizer.json"
        )
    return own if isinstance(own, Tokenizer) else KerasHubTokenizer(own)
