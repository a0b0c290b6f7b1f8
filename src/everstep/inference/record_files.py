"""TFRecord files of examples: a feature for each input of the model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError
from everstep.inference.specs import Spec

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
_USUAL = ("x", "inputs", "image", "image/encoded", "image_raw")
_ID = "id"
_KINDS = {"float_list": "float32", "int64_list": "int64", "bytes_list": "string"}


class RecordFiles:
    """Examples in a file, which the first of them shows the form of.

    Args:
      path: The file.
      specs: The model's inputs.
      without: Features that are no inputs.

    Raises:
      UsageError: It cannot be read, or does not fit.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._tf = load_tensorflow("reading TFRecord files")
        self._path, self._specs = path, list(specs)
        self.count: int | None = None
        first = self._first()
        self._has_id = _ID in first and _ID not in [spec.name for spec in specs]
        left = {name: value for name, value in first.items() if name not in (*without, _ID)}
        self._names = [self._feature(spec, left) for spec in specs]
        self._parsed = {
            name: self._form(spec, name, *first[name]) for spec, name in zip(specs, self._names, strict=True)
        }
        if self._has_id:
            self._parsed[_ID] = self._tf.io.FixedLenFeature([], _KINDS[first[_ID][0]])

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray]]]:
        """Yields all examples in order, at most `size` at a time."""
        tf, done = self._tf, 0
        try:
            for serialized in tf.data.TFRecordDataset(str(self._path)).batch(size):
                parsed = tf.io.parse_example(serialized, self._parsed)
                count = int(serialized.shape[0])
                ids: Sequence[Any] = range(done, done + count)
                if self._has_id:
                    ids = [
                        value.decode() if isinstance(value, bytes) else value for value in parsed[_ID].numpy().tolist()
                    ]
                done += count
                yield ids, [self._array(s, parsed[n]) for s, n in zip(self._specs, self._names, strict=True)]
        except tf.errors.OpError as error:
            reason = (str(error.message).splitlines() or [""])[0][:200]
            raise UsageError(f"--input: {str(self._path)!r}, after record {done}: {reason}") from error

    def _first(self) -> dict[str, tuple[str, int]]:
        """Returns the features of the first example, each with its kind and its number of values."""
        tf = self._tf
        try:
            record = next(iter(tf.data.TFRecordDataset(str(self._path)).take(1)), None)
            example = tf.train.Example.FromString(record.numpy()) if record is not None else None
        except Exception as error:  # of TensorFlow, or of the parser, whatever it finds
            raise UsageError(f"--input: {str(self._path)!r} holds no examples: {str(error)[:200]}") from error
        if example is None:
            raise UsageError(f"--input: {str(self._path)!r} has no record")
        kinds = {name: (feature.WhichOneof("kind"), feature) for name, feature in example.features.feature.items()}
        return {name: (kind, len(getattr(f, kind).value)) for name, (kind, f) in kinds.items() if kind}

    def _feature(self, spec: Spec, there: dict[str, tuple[str, int]]) -> str:
        usual = [name for name in _USUAL if name in there]
        if spec.name in there:
            return spec.name
        if len(self._specs) == 1 and (len(there) == 1 or usual):
            return next(iter(there)) if len(there) == 1 else usual[0]
        raise UsageError(
            f"--input: {str(self._path)!r} has {', '.join(sorted(there))}, but the model takes {spec.name}: "
            "name the feature so, or leave others out with --without NAME"
        )

    def _form(self, spec: Spec, name: str, kind: str, count: int) -> Any:
        """Returns how a feature is read; refuses one that cannot become the input."""
        if kind == "bytes_list" and (spec.dtype == "string" or len(spec.shape) == 3):
            return self._tf.io.FixedLenFeature([] if spec.dtype != "string" else list(spec.shape), "string")
        is_float = not spec.dtype.startswith(("int", "uint", "bool", "string"))
        fits = kind == "int64_list" or (kind == "float_list" and is_float)
        if not fits or spec.dtype == "string" or spec.size not in (None, count) or None in spec.shape:
            raise UsageError(
                f"--input: the feature {name!r} has {count} values of {_KINDS[kind]}, but the model's input "
                f"{spec.name!r} takes {spec}"
            )
        return self._tf.io.FixedLenFeature([int(size or 0) for size in spec.shape], _KINDS[kind])

    def _array(self, spec: Spec, values: Any) -> np.ndarray:
        if spec.dtype == "string" or values.dtype != self._tf.string:
            return spec.cast(values.numpy())
        images = [self._tf.io.decode_image(one, channels=spec.shape[2] or 0, expand_animations=False) for one in values]
        wanted = [
            image for image in images if any(w not in (None, s) for w, s in zip(spec.shape, image.shape, strict=True))
        ]
        if wanted:
            raise UsageError(f"--input: an image in {str(self._path)!r} is {list(wanted[0].shape)}, not {spec}")
        return spec.cast(np.stack([image.numpy() for image in images]))
