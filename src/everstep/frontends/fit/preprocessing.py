"""Batches for a task of KerasHub: its preprocessor is applied to them, as `model.fit` does.

    texts, labels = ["what a film", "how dull"], [1, 0]
    everstep.fit(classifier, texts, labels)  # the classifier's own tokenizer makes numbers of the texts

What is preprocessed already is left as it is; see `preprocessed`.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from everstep.data import MappedStream, Stream, is_arrays, is_text, nest
from everstep.engine import is_hub_task
from everstep.task import unpack
from everstep.types import Batch


def preprocesses(model: keras.Model) -> bool:
    """Whether a model is a task of KerasHub with a preprocessor."""
    return is_hub_task(model) and model.preprocessor is not None


def preprocessed(stream: Stream, model: keras.Model, source: Any) -> Stream:
    """Returns batches that a model can compute with: those of the stream, passed through its preprocessor.

    A stream of batches that are preprocessed already is returned unchanged: these are dicts with the model's own
    inputs. So are datasets without text: KerasHub's own `fit` hands over such.

    Args:
      stream: The batches, at their start.
      model: The model.
      source: What the stream reads.
    """
    if not preprocesses(model):
        return stream
    features = unpack(stream.peek())[0]
    if isinstance(features, Mapping) and {tensor.name for tensor in model.inputs} <= set(features):
        return stream
    if not is_arrays(source) and not any(is_text(np.asarray(leaf)) for leaf in nest.flatten(features)):
        return stream
    return MappedStream(stream, lambda batch: _preprocessed(batch, model))


def _preprocessed(batch: Batch, model: keras.Model) -> Batch:
    """Returns a batch as arrays: what the model's preprocessor makes of features, labels and weights."""
    parts = [nest.map_leaves(_in_python, part) for part in unpack(batch)]
    return nest.map_leaves(_on_host, tuple(model.preprocess_samples(*parts)))


def _in_python(leaf: Any) -> Any:
    """Returns text as a list, which preprocessors expect, and any other array unchanged."""
    array = np.asarray(leaf)
    return _decoded(array.tolist()) if is_text(array) else leaf


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _on_host(leaf: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(leaf) if keras.ops.is_tensor(leaf) else np.asarray(leaf)
