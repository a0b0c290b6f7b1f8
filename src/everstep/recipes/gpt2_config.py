"""The shape of a language model like GPT-2. Imports no Keras."""

import dataclasses
from collections.abc import Iterator

from everstep.config import Config
from everstep.errors import Problem, UsageError


@dataclasses.dataclass
class GPT2ModelConfig(Config):
    """The shape of the model; the defaults are those of GPT-2 with 124 M parameters."""

    vocabulary: int = 50304
    """Tokens; the 50,257 of GPT-2 are padded to a multiple of 128, which makes the products of the logits faster."""
    context: int = 1024
    """Tokens in a sequence."""
    layers: int = 12
    """Blocks, each of an attention and a feed-forward part."""
    heads: int = 12
    """Attention heads; they share the width. 64 numbers per head are what flash attention is fastest with."""
    width: int = 768
    """Numbers per token."""
    bias: bool = False
    """Whether dense layers and normalizations have a bias, as GPT-2 has; without it is faster, and as good."""
    dropout: float = 0.0
    """Share of a block's outputs dropped in training. Attention itself has no dropout: flash attention excludes it."""
    fused_qkv: bool = False
    """Whether queries, keys and values are one product; XLA then copies them apart."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        problems = list(self._wrong())
        if problems:
            raise UsageError(problems)

    def _wrong(self) -> Iterator[Problem]:
        counts = {name: getattr(self, name) for name in ("vocabulary", "context", "layers", "heads", "width")}
        yield from (Problem(name, "must be at least 1", received=n) for name, n in counts.items() if n < 1)
        if self.heads > 0 and self.width % self.heads:
            yield Problem("heads", f"must divide the width, {self.width}", received=self.heads)
        if not 0 <= self.dropout < 1:
            yield Problem("dropout", "must be from 0 to below 1", received=self.dropout)
