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


def split(labels: Any) -> tuple[Any, Any]:
    """Returns the class labels and the dataset ids of a batch: `y`, or `{"label": y, "dataset_id": ids}`.

    Raises:
      UsageError: A dict without labels.
    """
    if not isinstance(labels, Mapping):
        return labels, None
    if LABEL not in labels:
        raise UsageError(f"the labels are a dict with {sorted(map(str, labels))}: it needs the key {LABEL!r}")
    return labels[LABEL], labels.get(DATASET)
