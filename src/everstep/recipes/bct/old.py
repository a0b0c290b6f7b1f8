"""`OldModel`: the frozen copy of the model that stored embeddings were computed with, and how models are loaded.

Files are loaded as untrusted: no code in them is run.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.checkpoint.remote import is_url, local_view
from everstep.errors import UsageError
from everstep.recipes.bct.embedding import (
    Classifier,
    embedding_part,
    find_classifier,
    first_line,
    predict_vectors,
    symbolic,
)
from everstep.recipes.bct.files import local_file
from everstep.trained import load_keras

_EXPORTED = Path("export", "model.keras")


def load_model(path: str | Path, where: str) -> keras.Model:
    """Returns the model of a `.keras` file, or the exported one of a run directory.

    Python's and NumPy's random generators are left as they were.

    Args:
      path: The file or directory.
      where: The key of the path in errors, such as `task.bct.old_model`.

    Raises:
      UsageError: There is no such file, or it cannot be loaded safely.
    """
    file = _file(_here(path, where), where)
    try:
        with unchanged_randomness():
            return load_keras(file)  # also in a process that has not imported the classes of `model.py`
    except Exception as error:
        raise UsageError(
            f"{str(file)!r} cannot be loaded without its code ({first_line(error)})",
            key=where,
            remedy="expected a model of Keras's own layers and everstep.bct.Classifier",
        ) from error


@contextlib.contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Restores Python's and NumPy's generators afterwards: layers draw the seeds of their initializers from them."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _here(path: str | Path, where: str) -> Path:
    """Returns where a model is on this machine; one in a store is fetched."""
    if is_url(path) and not str(path).endswith(".keras"):
        return local_view(str(path), checkpoints=False)
    return local_file(path, where)


def _file(path: Path, where: str) -> Path:
    if path.is_dir():
        if not (path / _EXPORTED).is_file():
            raise UsageError(
                f"{str(path)!r} has no {_EXPORTED}", key=where, remedy="name a run that has finished, or a file"
            )
        return path / _EXPORTED
    if not path.is_file():
        raise UsageError(f"no such file or directory: {str(path)!r}", key=where)
    if path.suffix != ".keras":
        raise UsageError("expected a .keras file or a run directory", key=where, received=str(path))
    return path


_SCOPE = "bct_old"


class OldModel:
    """An embedding model and, where it has one, its classifier.

        old = OldModel.load("runs/old")
        vectors = old.embed(images)

    The model that is given is left alone: this holds a copy that is not trainable and always in inference mode.

    Attributes:
      embedding: The copy, from inputs to embeddings.
      classifier: The frozen copy of the classifier; None for a model that only embeds.

    Args:
      model: A functional or sequential model with an embedding in it.
      size: How wide its embedding has to be; None to take it as it is.
      classifier: The name of the Dense layer that is its classifier, where it has no `Classifier`.
      classes: The names of that layer's classes, in its order.
      where: The key of the model in errors.

    Raises:
      UsageError: The model does not fit these arguments.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        size: int | None = None,
        classifier: str = "",
        classes: Sequence[str] = (),
        where: str = "old model",
    ) -> None:
        self.where = where
        dense = _dense(model, classifier, classes, where) if classifier else None
        part = keras.Model(symbolic(model)[0], dense.input) if dense is not None else embedding_part(model)
        self.embedding = _frozen_copy(part)
        own = dense if dense is not None else find_classifier(model)
        self.classifier = None if own is None else _frozen(own, classes)
        if size is not None and self.size != size:
            raise UsageError(f"its embedding has {self.size} components, but {size} were expected", key=where)

    @classmethod
    def load(cls, path: str | Path, *, where: str = "old model", **settings: Any) -> "OldModel":
        """Returns the old model of a `.keras` file or of a finished run; `settings` are those of the constructor.

        Raises:
          UsageError: There is none, it cannot be loaded safely, or it does not fit the settings.
        """
        return cls(load_model(path, where), where=f"{where} {str(path)!r}", **settings)

    @property
    def size(self) -> int:
        """How many components an embedding has."""
        return int(self.embedding.outputs[0].shape[-1])

    @property
    def class_names(self) -> list[str]:
        """The classes of its classifier; empty without one."""
        return [] if self.classifier is None else self.classifier.class_names

    def embed(self, x: Any, batch_size: int = 256) -> np.ndarray:
        """Returns the old embeddings of samples, float32 (samples, size)."""
        return predict_vectors(self.embedding, x, batch_size)

    def require_classifier(self, variant: str) -> Classifier:
        """Returns the classifier.

        Raises:
          UsageError: There is none, and the variant needs one.
        """
        if self.classifier is None:
            raise UsageError(
                f"has no classifier, which variant={variant} needs",
                key=self.where,
                remedy="name its Dense layer (old_classifier, old_classes), or use variant=synthesise_all",
            )
        return self.classifier


def frozen_classifier(
    kernel: np.ndarray, names: Sequence[str], normalize: bool, scale: float, bias: np.ndarray | None = None
) -> Classifier:
    """Returns a classifier with these weights that no optimizer may change."""
    with unchanged_randomness(), keras.name_scope(_SCOPE):
        made = Classifier(names, normalize, scale, trainable=False)
        made.build((None, kernel.shape[0]))
    made.kernel.assign(kernel)
    if made.bias is not None and bias is not None:
        made.bias.assign(bias)
    return made


def _frozen(layer: Any, classes: Sequence[str]) -> Classifier:
    """Returns a frozen copy of a `Classifier` or a Dense layer."""
    kernel = ops.convert_to_numpy(layer.kernel)
    bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
    if isinstance(layer, Classifier):
        return frozen_classifier(kernel, layer.class_names, layer.normalize, layer.scale, bias)
    return frozen_classifier(kernel, classes, False, 1.0, bias)


def _frozen_copy(model: keras.Model) -> keras.Model:
    with unchanged_randomness(), keras.name_scope(_SCOPE):
        copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.trainable = False
    return copy


def _dense(model: keras.Model, name: str, classes: Sequence[str], where: str) -> keras.layers.Dense:
    """Returns the Dense layer of that name, with as many units as there are classes."""
    layers = {layer.name: layer for layer in model.layers if isinstance(layer, keras.layers.Dense)}
    if name not in layers:
        reason = f"there is no such Dense layer; there are {sorted(layers)}"
        raise UsageError(reason, key=f"{where}: old_classifier", received=name)
    if len(classes) != layers[name].units:
        raise UsageError(
            f"the layer {name!r} has {layers[name].units} classes, but {len(classes)} names were given",
            key=f"{where}: old_classes",
            remedy="list all of them, in its order",
        )
    return layers[name]
