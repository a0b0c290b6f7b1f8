"""The configuration of backward-compatible training. Imports no Keras."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from everstep import Config, TaskConfig
from everstep.errors import Problem

Variant = Literal["synthesise_all", "synthesise_new", "old_classes", "distill"]


@dataclasses.dataclass
class ClassifierConfig(Config):
    """The layer that classifies embeddings."""

    normalize: bool = True
    """Whether it compares directions only. Without, the new model is seldom compatible with the old one."""
    scale: Annotated[float, Gt(0), Lt(math.inf)] = 16.0
    """The factor from cosines to logits, with `normalize`."""


@dataclasses.dataclass
class CompatibilityConfig(Config):
    """The model that the new one is to be compatible with, and its weight in the loss."""

    old_model: str = ""
    """The old model: a `.keras` file or a finished run's directory. Empty: train independently of any."""
    weight: Annotated[float, Ge(0), Lt(math.inf)] = 1.0
    """The factor of the influence loss; 0 trains independently, to the bit."""
    variant: Variant = "synthesise_all"
    """Which samples the old classifier judges, and how: `synthesise_all` gives it weights for every new class, made
    from old embeddings; `synthesise_new` only for those it lacks; `old_classes` judges samples of classes it has;
    `distill` has it judge the others by the old model's own answers."""
    temperature: Annotated[float, Gt(0), Lt(math.inf)] = 1.0
    """Of the old model's answers, in `distill`: higher is softer."""
    exclude_datasets: list[int] = dataclasses.field(default_factory=list)
    """Samples whose `dataset_id` is one of these are left out of the influence loss."""
    old_embedding_size: Annotated[int, Ge(1)] | None = None
    """How wide the old model's embedding has to be; None to take it as it is."""
    old_classifier: str = ""
    """The name of the Dense layer that is the old model's classifier; an everstep `Classifier` is found by itself."""
    old_classes: list[str] = dataclasses.field(default_factory=list)
    """The names of the old classifier's classes, in its order; an everstep classifier knows its own."""

    def _problems(self) -> Iterator[Problem]:
        yield from _repeated("old_classes", self.old_classes)


@dataclasses.dataclass
class BCTConfig(TaskConfig):
    """A classifier whose embeddings are to be compared with those of an older model."""

    classes: list[str] = dataclasses.field(default_factory=list)
    """The names of the classes: label 0 is the first. The old model's classes are found by their names."""
    classifier: ClassifierConfig = dataclasses.field(default_factory=ClassifierConfig)
    """The new model's classifier."""
    bct: CompatibilityConfig = dataclasses.field(default_factory=CompatibilityConfig)
    """The old model and its influence."""

    def _problems(self) -> Iterator[Problem]:
        yield from _repeated("classes", self.classes)
        if len(self.classes) < 2:
            yield Problem("classes", "expected two names at least", received=self.classes)


def _repeated(key: str, names: list[str]) -> Iterator[Problem]:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        yield Problem(
            key, f"{twice[0]!r} is listed more than once", remedy="labels are matched by name: list each once"
        )
