"""The engine of a model's last `fit`, kept with the model: a call that changes nothing traces and compiles nothing.

It is an attribute of the model, so that it goes when the model goes, and it holds no data and no copy of the weights.
Anything that a compiled step was made of and that may change between two calls is compared before it is used again.
"""

import dataclasses
from typing import Any

import keras

from everstep.data import nest
from everstep.engine.engine import Engine
from everstep.loop.trainer import Trainer
from everstep.task.description import settings
from everstep.types import Batch

_ATTRIBUTE = "_everstep_kept"


@dataclasses.dataclass(frozen=True)
class _Kept:
    """An engine, and what it was built for."""

    engine: Engine
    objects: list[Any]
    """What has to be the same objects: what `compile` made, the layers, where the model runs."""
    values: list[Any]
    """What has to be equal: settings of layers and of the optimizer, what is trainable."""
    shapes: tuple[Any, Any]
    """Of a training batch and of a validation batch, None where it was built without."""

    def serves(self, other: "_Kept") -> bool:
        """Whether the engine can do what another call wants; one that evaluates can also train alone."""
        same = len(self.objects) == len(other.objects) and all(map(_is, self.objects, other.objects))
        train, validation = other.shapes
        return same and self.values == other.values and self.shapes[0] == train and validation in (None, self.shapes[1])


class FitTrainer(Trainer):
    """A trainer that uses the engine of the model's last `fit`, where nothing has changed since."""

    def _built_engine(self, train_batch: Batch | None, validation_batch: Batch | None) -> Engine:
        kept, shapes = vars(self.model).pop(_ATTRIBUTE, None), (_shapes(train_batch), _shapes(validation_batch))
        if kept is not None and kept.serves(self._describe(kept.engine, shapes)) and kept.engine.reuse(self.task):
            self._kept_shapes = kept.shapes
            return kept.engine
        self._kept_shapes = shapes
        return super()._built_engine(train_batch, validation_batch)

    def keep(self) -> None:
        """Leaves the engine to the next call; to be called when all is done, and the trainer is closed."""
        self.engine.release()
        vars(self.model)[_ATTRIBUTE] = self._describe(self.engine, self._kept_shapes)

    def _describe(self, engine: Engine, shapes: tuple[Any, Any]) -> _Kept:
        model, optimizer = self.model, self.optimizer
        layers = list(model._flatten_layers())
        compiled = [model._compile_loss, model._compile_metrics, model._loss_tracker]
        objects = [optimizer, _schedule(optimizer), *compiled, engine.strategy(), *layers]
        values = [
            (model.run_eagerly, model.jit_compile, keras.config.floatx(), self.config.runtime.enable_xla),
            [(layer.trainable, layer.dtype_policy.name) for layer in layers],
            [variable.trainable for variable in model.variables],
            settings(model),
        ]
        return _Kept(engine, objects, values, shapes)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _schedule(optimizer: Any) -> Any:
    """Returns what the learning rate follows, a variable or a schedule: another one is another step."""
    return getattr(optimizer, "_learning_rate", None)


def _shapes(batch: Batch | None) -> Any:
    if batch is None:
        return None
    return nest.structure(batch), [(leaf.shape, str(leaf.dtype)) for leaf in nest.flatten(batch)]
