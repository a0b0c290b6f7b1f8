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
from everstep.engine import preprocess, preprocesses
from everstep.task import unpack


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
    return MappedStream(stream, lambda batch: preprocess(model, *unpack(batch)))
