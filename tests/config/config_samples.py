"""Configs for the tests of this folder."""

import dataclasses
import pathlib
from typing import Literal, Optional

from everstep.config import Config
from everstep.errors import UsageError


@dataclasses.dataclass
class Model(Config):
    units: int = 3
    rate: float = 0.5
    bias: bool = True
    name: str = "m"
    activation: Optional[str] = None  # noqa: UP045
    shape: tuple[int, ...] = (1, 2)


@dataclasses.dataclass
class BigModel(Model):
    depth: int = 2


@dataclasses.dataclass
class Task(Config):
    model: Model = Model()
    extra: Model | None = None
    layers: list[Model] = [Model(units=1)]
    heads: tuple[Model, ...] = ()
    named: dict[str, Model] = {}
    free: Config | None = None
    table: dict = {"a": 1}
    mode: Literal["fast", "slow"] = "fast"
    where: pathlib.Path | None = None


@dataclasses.dataclass
class Experiment(Config):
    task: Task = Task()
    steps: int = 0


@dataclasses.dataclass
class Walker(Config):
    legs: int = 2

    def validate(self) -> None:
        super().validate()
        if self.legs < 0:
            raise UsageError("legs cannot be negative")


@dataclasses.dataclass
class Zoo(Config):
    walkers: list[Walker] = [Walker(), Walker()]
    best: Walker | None = None


@dataclasses.dataclass(kw_only=True)
class Needy(Config):
    name: str
    size: int = 1


@dataclasses.dataclass
class Holder(Config):
    needy: Needy | None = None


def write_config(folder: pathlib.Path, text: str, name: str = "c.yaml") -> pathlib.Path:
    """Writes a file of configuration; returns its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
