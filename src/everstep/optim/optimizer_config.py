"""Configuration of each optimizer: names and defaults as in TensorFlow Model Garden."""

import dataclasses
from collections.abc import Iterator

from everstep.config import Problem
from everstep.optim.checks import NamedConfig, Patterns, below_one, fraction, not_negative, patterns, positive


@dataclasses.dataclass
class ClippingConfig(NamedConfig):
    """What every optimizer has: at most one of three ways to clip gradients."""

    clipnorm: float | None = None
    """Largest norm of each variable's gradient."""
    clipvalue: float | None = None
    """Largest absolute value of any gradient entry."""
    global_clipnorm: float | None = None
    """Largest norm of all gradients taken together."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        names = ("clipnorm", "clipvalue", "global_clipnorm")
        yield from positive(self, *names)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            yield Problem("", f"gradients are clipped twice, by {' and '.join(given)}: set one of them")


@dataclasses.dataclass
class SGDConfig(ClippingConfig):
    """Gradient descent, with momentum if asked for."""

    decay: float = 0.0
    """Divides the learning rate by `1 + decay * step`."""
    momentum: float = 0.0
    """Share of the last update that is kept."""
    nesterov: bool = False
    """Looks ahead along the momentum."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from not_negative(self, "decay")
        yield from below_one(self, "momentum")


@dataclasses.dataclass
class AdamConfig(ClippingConfig):
    """Adam (Kingma and Ba, 2015)."""

    beta_1: float = 0.9
    """Decay of the mean of the gradients."""
    beta_2: float = 0.999
    """Decay of the mean of their squares."""
    epsilon: float = 1e-7
    """Keeps the division finite."""
    amsgrad: bool = False
    """Uses the largest second moment seen so far."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from below_one(self, "beta_1", "beta_2")
        yield from not_negative(self, "epsilon")


@dataclasses.dataclass
class AdamWeightDecayConfig(AdamConfig):
    """AdamW: Adam with weight decay that is no part of the gradient."""

    weight_decay_rate: float = 0.0
    """Each step takes `learning_rate * weight_decay_rate * variable` off the variable."""
    include_in_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one decays, even if it is excluded below."""
    exclude_from_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one, such as `bias`, does not decay."""
    gradient_clip_norm: float = 1.0
    """Largest norm of all gradients taken together, as Model Garden clips by default; 0 clips nothing."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from not_negative(self, "weight_decay_rate", "gradient_clip_norm")
        yield from patterns(self, "include_in_weight_decay", "exclude_from_weight_decay")
        if self.gradient_clip_norm and (self.clipnorm or self.clipvalue or self.global_clipnorm):
            text = "gradients are clipped twice: set gradient_clip_norm to 0 to clip another way"
            yield Problem("gradient_clip_norm", f"received {self.gradient_clip_norm}, {text}")


@dataclasses.dataclass
class LayerwiseConfig(ClippingConfig):
    """What lamb and lars have in common: decay, and a step as long as the variable allows."""

    weight_decay_rate: float = 0.0
    """So much of the variable is added to its update."""
    exclude_from_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one, such as `bias`, does not decay."""
    exclude_from_layer_adaptation: Patterns | None = None
    """Regular expressions; a variable whose name matches one takes steps that ignore its norm. None: those above."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from not_negative(self, "weight_decay_rate")
        yield from patterns(self, "exclude_from_weight_decay", "exclude_from_layer_adaptation")


@dataclasses.dataclass
class LAMBConfig(LayerwiseConfig):
    """LAMB (You et al., 2020): Adam with a step as long as each variable allows."""

    beta_1: float = 0.9
    """Decay of the mean of the gradients."""
    beta_2: float = 0.999
    """Decay of the mean of their squares."""
    epsilon: float = 1e-6
    """Keeps the division finite."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from below_one(self, "beta_1", "beta_2")
        yield from not_negative(self, "epsilon")


@dataclasses.dataclass
class LARSConfig(LayerwiseConfig):
    """LARS (You et al., 2017): gradient descent with a step as long as each variable allows."""

    momentum: float = 0.9
    """Share of the last update that is kept."""
    eeta: float = 0.001
    """The length of a step as a share of the variable's norm."""
    nesterov: bool = False
    """Looks ahead along the momentum."""
    classic_momentum: bool = True
    """The learning rate is part of the momentum; else the momentum is of gradients, and its sum is scaled."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from below_one(self, "momentum")
        yield from positive(self, "eeta")


@dataclasses.dataclass
class RMSPropConfig(ClippingConfig):
    """RMSprop (Hinton, 2012)."""

    rho: float = 0.9
    """Decay of the mean of squared gradients."""
    momentum: float = 0.0
    """Share of the last update that is kept."""
    epsilon: float = 1e-7
    """Keeps the division finite."""
    centered: bool = False
    """Divides by the variance of the gradients instead of their mean square."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from below_one(self, "rho", "momentum")
        yield from not_negative(self, "epsilon")


@dataclasses.dataclass
class AdagradConfig(ClippingConfig):
    """Adagrad (Duchi et al., 2011)."""

    initial_accumulator_value: float = 0.1
    """The sum of squared gradients to begin with."""
    epsilon: float = 1e-7
    """Keeps the division finite."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from not_negative(self, "initial_accumulator_value", "epsilon")


@dataclasses.dataclass
class AdafactorConfig(ClippingConfig):
    """Adafactor (Shazeer and Stern, 2018): second moments by row and column, steps relative to the weights."""

    beta_2_decay: float = -0.8
    """The second moments decay by `1 - step ** beta_2_decay`."""
    epsilon_1: float = 1e-30
    """Added to squared gradients."""
    epsilon_2: float = 1e-3
    """The smallest root mean square of the weights that a step is relative to."""
    clip_threshold: float = 1.0
    """The largest root mean square of an update."""
    relative_step: bool = True
    """The learning rate is at most one over the square root of the step."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from not_negative(self, "epsilon_2")
        yield from positive(self, "epsilon_1", "clip_threshold")
        if self.beta_2_decay >= 0:
            yield Problem("beta_2_decay", f"received {self.beta_2_decay}, must be less than 0")


@dataclasses.dataclass
class EMAConfig(NamedConfig):
    """A moving average of the weights, with which a model is evaluated and exported."""

    trainable_weights_only: bool = True
    """False averages what else the model keeps, too, such as batch normalization's statistics."""
    average_decay: float = 0.99
    """The share of the former average that a step keeps."""
    start_step: int = 0
    """Before this step the average is a copy of the weights."""
    dynamic_decay: bool = True
    """Keeps less at first: at most `(1 + n) / (10 + n)` in the n-th step after `start_step`."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        # With 1 nothing of a step would reach the average; the dynamic decay is less for as long as a run lasts.
        yield from fraction(self, "average_decay") if self.dynamic_decay else below_one(self, "average_decay")
        yield from not_negative(self, "start_step")
