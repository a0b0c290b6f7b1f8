"""The shape of a small transformer. Imports no Keras."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Lt

from everstep import Config
from everstep.errors import Problem


@dataclasses.dataclass
class TransformerConfig(Config):
    """Width, depth and the like; its blocks are set by gin bindings or in code."""

    width: Annotated[int, Ge(1)] = 64
    """Numbers per token."""
    depth: Annotated[int, Ge(1)] = 2
    """Pairs of an attention and a feed-forward block."""
    heads: Annotated[int, Ge(1)] = 4
    """Attention heads; they share the width."""
    hidden: Annotated[int, Ge(1)] = 256
    """Width inside the feed-forward blocks."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of a block's outputs dropped in training."""

    def _problems(self) -> Iterator[Problem]:
        if self.heads > 0 and self.width % self.heads:
            yield Problem("heads", f"must divide the width, {self.width}", received=self.heads)
