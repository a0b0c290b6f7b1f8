"""Configuration of the optimizers: names and defaults as in TensorFlow Model Garden."""

import dataclasses

from everstep.config import Config, OneOfConfig


@dataclasses.dataclass
class ClippingConfig(Config):
    """What every optimizer has: at most one of three ways to clip gradients."""

    clipnorm: float | None = None
    """Largest norm of each variable's gradient."""
    clipvalue: float | None = None
    """Largest absolute value of any gradient entry."""
    global_clipnorm: float | None = None
    """Largest norm of all gradients taken together."""


@dataclasses.dataclass
class SGDConfig(ClippingConfig):
    """Gradient descent, with momentum if asked for."""

    decay: float = 0.0
    """Divides the learning rate by `1 + decay * step`."""
    momentum: float = 0.0
    """Share of the last update that is kept."""
    nesterov: bool = False
    """Looks ahead along the momentum."""


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


@dataclasses.dataclass
class AdamWeightDecayConfig(AdamConfig):
    """AdamW: Adam with weight decay that is no part of the gradient."""

    weight_decay_rate: float = 0.0
    """Each step takes `learning_rate * weight_decay_rate * variable` off the variable."""
    include_in_weight_decay: list[str] | None = None
    """Regular expressions; a variable whose path matches one decays, even if it is excluded below."""
    exclude_from_weight_decay: list[str] | None = None
    """Regular expressions; a variable whose path matches one, such as `bias`, does not decay."""
    gradient_clip_norm: float = 1.0
    """Largest norm of all gradients taken together, as Model Garden clips by default; 0 clips nothing."""


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


@dataclasses.dataclass
class OptimizerConfig(OneOfConfig):
    """Which optimizer updates the weights."""

    type: str | None = "adam"
    """One of the fields below."""
    sgd: SGDConfig = SGDConfig()
    """Gradient descent."""
    adam: AdamConfig = AdamConfig()
    """Adam."""
    adamw: AdamWeightDecayConfig = AdamWeightDecayConfig()
    """Adam with decoupled weight decay."""
    rmsprop: RMSPropConfig = RMSPropConfig()
    """RMSprop."""
