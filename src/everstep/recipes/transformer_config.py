"""The shape of a small transformer. Imports no Keras."""

import dataclasses

from everstep.config import Config
from everstep.errors import Problem, UsageError


@dataclasses.dataclass
class TransformerConfig(Config):
    """Width, depth and the like; its blocks are set by gin bindings or in code."""

    width: int = 64
    """Numbers per token."""
    depth: int = 2
    """Pairs of an attention and a feed-forward block."""
    heads: int = 4
    """Attention heads; they share the width."""
    hidden: int = 256
    """Width inside the feed-forward blocks."""
    dropout: float = 0.0
    """Share of a block's outputs dropped in training."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        least = {name: getattr(self, name) for name in ("width", "depth", "heads", "hidden")}
        wrong = [Problem(name, "must be at least 1", received=n) for name, n in least.items() if n < 1]
        if not wrong and self.width % self.heads:
            wrong.append(Problem("heads", f"must divide the width, {self.width}", received=self.heads))
        if not 0 <= self.dropout < 1:
            wrong.append(Problem("dropout", "must be from 0 to below 1", received=self.dropout))
        if wrong:
            raise UsageError(wrong)
