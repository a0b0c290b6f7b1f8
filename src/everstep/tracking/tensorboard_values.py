"""Pictures, texts and histograms as TensorBoard keeps them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

from everstep import redaction
from everstep.tracking.histogram import histogram
from everstep.tracking.samples import png


def image_values(name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> list[Any]:
    """Returns a value for each picture, and one with the captions."""
    pictures = [
        Summary.Value(
            tag=f"{name}/{number}",
            image=Summary.Image(
                height=image.shape[0],
                width=image.shape[1],
                colorspace=image.shape[2] if image.ndim == 3 else 1,
                encoded_image_string=png(image),
            ),
        )
        for number, image in enumerate(images)
    ]
    numbered = [f"{number}: {caption}" for number, caption in enumerate(captions)]
    return [*pictures, text_value(f"{name}/captions", numbered)] if numbered else pictures


def text_value(name: str, texts: Sequence[str]) -> Any:
    """Returns texts as one value."""
    data = [redaction.text(text).encode("utf-8") for text in texts]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(data))])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(
        tag=name, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=data)
    )


def histogram_value(name: str, values: np.ndarray) -> Any:
    """Returns the histogram of an array; None where it has no finite number."""
    found = histogram(values)
    if found is None:
        return None
    # TensorBoard's own form names the upper edge of each bucket; the first one begins at `min`.
    proto = HistogramProto(
        min=found.edges[0],
        max=found.edges[-1],
        num=sum(found.counts),
        sum=found.total,
        sum_squares=found.squares,
        bucket_limit=found.edges[1:],
        bucket=found.counts,
    )
    return Summary.Value(tag=name, histo=proto)
