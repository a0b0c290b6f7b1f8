"""Labels: old classes are found by name, and a batch may say which dataset a sample is from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError

LABEL, DATASET = "label", "dataset_id"


def label_map(new: Sequence[str], old: Sequence[str]) -> np.ndarray:
    """Returns, for each new label, the old one of the same name; -1 where there is none."""
    places = {name: index for index, name in enumerate(old)}
    return np.asarray([places.get(name, -1) for name in new], "int32")


def require_common(new: Sequence[str], old: Sequence[str]) -> None:
    """Refuses names of which not one is in both.

    Raises:
      UsageError: Nothing the old classifier knows is among the new classes.
    """
    if not set(new) & set(old):
        raise UsageError(
            f"bct: not one class of the old model ({_some(old)}) has the name of a new one ({_some(new)}): labels are "
            "matched by name; correct the names, or use variant=synthesise_all, which needs none"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return f"{shown}, …" if len(names) > 3 else shown or "none are known"


def parts(labels: Any) -> tuple[Any, Any]:
    """Returns class labels and dataset ids, whatever their shape: of `y`, or of `{"label": y, "dataset_id": ids}`.

    Raises:
      UsageError: There are none, or a dict without them.
    """
    if labels is None:
        raise UsageError("the batches have no labels: make them (x, y), or (x, {'label': y, 'dataset_id': ids})")
    if not isinstance(labels, Mapping):
        return labels, None
    if LABEL not in labels:
        raise UsageError(f"the labels are a dict with {sorted(map(str, labels))}: it needs the key {LABEL!r}")
    return labels[LABEL], labels.get(DATASET)


def split(labels: Any) -> tuple[Any, Any]:
    """Returns the same of one batch, whose class labels are (batch,) or (batch, 1).

    Raises:
      UsageError: A dict without labels, or several numbers per sample.
    """
    classes, datasets = parts(labels)
    _refuse_one_hot(classes)
    return classes, datasets


def _refuse_one_hot(classes: Any) -> None:
    """Refuses (batch, classes): flattened, every zero and one of it would be taken for a label."""
    shape = tuple(getattr(classes, "shape", ()))
    if len(shape) > 1 and shape[1:] != (1,):
        raise UsageError(
            f"the labels have the shape {shape}, but one whole number per sample is expected: of one-hot labels, give "
            "argmax(axis=-1)"
        )
