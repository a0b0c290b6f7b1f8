"""The shape of a language model like GPT-2. Imports no Keras."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Lt

from everstep import Config
from everstep.errors import Problem


@dataclasses.dataclass
class GPT2ModelConfig(Config):
    """The shape of the model; the defaults are those of GPT-2 with 124 M parameters."""

    vocabulary: Annotated[int, Ge(1)] = 50304
    """Tokens; the 50,257 of GPT-2 are padded to a multiple of 128, which makes the products of the logits faster."""
    context: Annotated[int, Ge(1)] = 1024
    """Tokens in a sequence."""
    layers: Annotated[int, Ge(1)] = 12
    """Blocks, each of an attention and a feed-forward part."""
    heads: Annotated[int, Ge(1)] = 12
    """Attention heads; they share the width. 64 numbers per head are what flash attention is fastest with."""
    width: Annotated[int, Ge(1)] = 768
    """Numbers per token."""
    bias: bool = False
    """Whether dense layers and normalizations have a bias, as GPT-2 has; without it is faster, and as good."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of a block's outputs dropped in training. Attention itself has no dropout: flash attention excludes it."""
    fused_qkv: bool = False
    """Whether queries, keys and values are one product; XLA then copies them apart."""

    def _problems(self) -> Iterator[Problem]:
        if self.heads > 0 and self.width % self.heads:
            yield Problem("heads", f"must divide the width, {self.width}", received=self.heads)
