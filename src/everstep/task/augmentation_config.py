"""How images are varied in training. Imports no Keras."""

import dataclasses
from typing import Literal

from everstep.config import Config, ConfigError, Problem


@dataclasses.dataclass
class AugmentationConfig(Config):
    """Random changes of images, drawn anew for every image in every training step; none of them by default."""

    flip: Literal["horizontal", "vertical", "horizontal_and_vertical"] | None = None
    """Mirror every second image, where the mirrored thing is still the same thing."""
    rotation: float = 0.0
    """Turn by up to this share of a full circle, either way: 0.05 is 18 degrees."""
    translation: float = 0.0
    """Shift by up to this share of height and width."""
    zoom: float = 0.0
    """Enlarge or shrink by up to this share."""

    def validate(self) -> None:
        """Checks the shares.

        Raises:
          UsageError: One is not from 0 to below 1; names the key.
        """
        super().validate()
        shares = {name: getattr(self, name) for name in ("rotation", "translation", "zoom")}
        wrong = [
            Problem(name, f"received {share}, must be from 0 to below 1")
            for name, share in shares.items()
            if not 0 <= share < 1
        ]
        if wrong:
            raise ConfigError(wrong)
