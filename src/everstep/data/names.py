"""The names that data has for its classes and samples, by the attributes that are usual for them.

| data | classes | samples |
|---|---|---|
| `keras.utils.image_dataset_from_directory` and its relatives | `class_names` | `file_paths` |
| `torchvision.datasets.ImageFolder` | `classes` | the files in `samples` |
| Hugging Face's `datasets` | the only `ClassLabel` among its features | |

Keras's attributes are those of the dataset itself: `.map` and `.prefetch` return another one, without them.
"""

import os
from collections.abc import Mapping
from typing import Any


def class_names(source: Any) -> list[str]:
    """Returns the names of a source's classes, in the order of their numbers; [] if it has none.

    Those of a part of a dataset, such as PyTorch's `Subset`, are the names of the whole.
    """
    for _ in range(3):
        for name in ("class_names", "classes"):
            if names := _texts(getattr(source, name, None)):
                return names
        features = getattr(source, "features", None)
        if isinstance(features, Mapping):
            labels = [found for feature in features.values() if (found := _texts(getattr(feature, "names", None)))]
            if len(labels) == 1:
                return labels[0]
        if (source := getattr(source, "dataset", None)) is None:
            break
    return []


def file_paths(source: Any) -> list[str]:
    """Returns the files of samples that a source lists; [] if it lists none."""
    paths = _texts(getattr(source, "file_paths", None))
    samples = getattr(source, "samples", None)
    if not paths and isinstance(samples, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in samples):
        paths = _texts([path for path, _ in samples])
    return paths


def file_names(source: Any) -> list[str] | None:
    """Returns the files that a source lists, as paths from the folder that holds all of them; None if it lists none."""
    paths = file_paths(source)
    if not paths:
        return None
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, folder).replace(os.sep, "/") for path in paths]


def _texts(names: Any) -> list[str]:
    """Returns names as a list; [] if they are something else."""
    is_listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return list(names) if is_listed else []
