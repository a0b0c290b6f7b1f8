"""`OneOfConfig`: a choice between named alternatives."""

import dataclasses
from typing import Any

from everstep.config.base import Config
from everstep.config.problem import ConfigError, Problem
from everstep.errors import nearest


@dataclasses.dataclass
class OneOfConfig(Config):
    """A config of which one branch is in use: the field that `type` names.

        @dataclasses.dataclass
        class BackboneConfig(OneOfConfig):
            type: str | None = "resnet"
            resnet: ResNetConfig = ResNetConfig()
            vit: ViTConfig = ViTConfig()

        BackboneConfig({"type": "vit", "vit": {"depth": 12}}).get()  # ViTConfig(depth=12)

    Branches that are not selected keep their values in memory, so that an override of `type` alone finds what
    earlier layers had set; `as_dict`, YAML and `validate` see the selected branch only.
    """

    type: str | None = None
    """Name of the branch in use; None selects nothing."""

    def get(self, key: str | None = None, default: Any = None) -> Any:
        """Returns the selected branch, or None where nothing is selected; with a key, its value, as any config does."""
        if key is not None:
            return super().get(key, default)
        return getattr(self, self.type) if self.type else None

    def _emitted(self) -> list[str]:
        return ["type", self.type] if self.type else ["type"]

    def _convert(self, name: str, value: Any) -> Any:
        converted = super()._convert(name, value)
        branches = [n for n in self._names() if n != "type"]
        if name == "type" and converted is not None and converted not in branches:
            text = f"unknown type {converted!r}; {nearest(converted, branches)}"
            raise ConfigError([Problem("type", text)])
        return converted
