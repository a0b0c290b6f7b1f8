"""SavedModels that somebody else may have written: one that would touch files or run Python is not loaded.

A SavedModel is a program. Before TensorFlow sees it, every operation in it is looked at by name.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError
from everstep.export import tensorflow_files
from everstep.inference.specs import Spec

_SIGNATURE = "serving_default"
_LARGEST = 1 << 31
_PYTHON = ("PyFunc", "EagerPyFunc")
_FILES = (
    *("ReadFile", "WriteFile", "MatchingFiles", "ImmutableConst", "Skipgram", "FileSystemSetConfiguration"),
    *("WholeFileReader", "TextLineReader", "FixedLengthRecordReader", "TFRecordReader", "LMDBReader", "IdentityReader"),
    *("TextLineDataset", "FixedLengthRecordDataset", "TFRecordDataset", "LMDBDataset", "SqlDataset", "CSVDataset"),
    *("ExperimentalCSVDataset", "ExperimentalSqlDataset", "LoadDataset", "SaveDataset", "SnapshotDataset"),
    *("CacheDataset", "DataServiceDataset", "DistributedSave", "InitializeTableFromTextFile", "GenerateVocabRemapping"),
    *("LoadAndRemapMatrix", "CreateSummaryFileWriter", "CreateSummaryDbWriter", "Rpc", "TryRpc", "Debug"),
)
_CHECKPOINTS = ("Restore", "Save", "MergeV2Checkpoints")
_OF_THE_SAVER = ("__inference__traced_save", "__inference__traced_restore")


class SavedModelPredictor:
    """A SavedModel's signature, asked batch by batch, whatever backend this process has.

    Raises:
      UsageError: It is refused, cannot be loaded, or has no signature to ask.
    """

    def __init__(self, path: Path) -> None:
        require_harmless(path)
        self._tf = load_tensorflow("predicting with a SavedModel")
        try:
            with tensorflow_files.quiet():
                self._loaded = self._tf.saved_model.load(str(path))
        except Exception as error:  # of TensorFlow whatever it finds
            raise UsageError(f"the SavedModel {str(path)!r} cannot be loaded: {_line(error)}") from error
        self._function = _signature(self._loaded.signatures, path)
        inputs = self._function.structured_input_signature[1]
        self._keys = list(inputs)
        self.specs = [_spec(name, inputs[name]) for name in self._keys]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name, for arrays in the order of `specs`."""
        tensors = {
            key: self._tf.constant(array.tolist() if spec.dtype == "string" else array, spec.dtype)
            for key, spec, array in zip(self._keys, self.specs, arrays, strict=True)
        }
        return {name: np.asarray(value) for name, value in self._function(**tensors).items()}

    def activation(self) -> str:
        """Returns nothing: a SavedModel does not say what it applies last."""
        return ""


def require_harmless(path: Path) -> None:
    """Refuses a SavedModel with operations that read or write files, or run Python.

    Raises:
      UsageError: It has one, is broken, or a link or a name in it leads out of it.
    """
    for entry in path.rglob("*"):
        if entry.is_symlink():
            raise _refused(path, f"{entry.name!r} in it is a link")
    for graph in _read(path).meta_graphs:
        for asset in graph.asset_file_def:
            if asset.filename.startswith(("/", "\\")) or ".." in Path(asset.filename).parts:
                raise _refused(path, f"its file {asset.filename!r} leads out of it")
        for where, node in _nodes(graph):
            _require_harmless_node(node, where, path)


def _nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    yield from (("", node) for node in graph.graph_def.node)
    for function in graph.graph_def.library.function:
        yield from ((function.signature.name, node) for node in function.node_def)


def _require_harmless_node(node: Any, where: str, path: Path) -> None:
    if node.op.startswith(_PYTHON):
        raise _refused(path, f"the operation {node.op} in it runs Python")
    prints_to_file = node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file:")
    if node.op.startswith(_FILES) or prints_to_file:
        raise _refused(path, f"the operation {node.op} in it opens files")
    if where and node.op.startswith(_CHECKPOINTS) and not where.startswith(_OF_THE_SAVER):
        raise _refused(path, f"the operation {node.op} in it opens files")
    calls = [value.func.name for value in node.attr.values() if value.HasField("func")]
    if where and any(name.startswith(_OF_THE_SAVER) for name in (*calls, node.op)):
        raise _refused(path, f"a function in it calls {next(iter(calls), node.op)!r}, which opens files")


def _read(path: Path) -> Any:
    load_tensorflow("predicting with a SavedModel")
    protos = importlib.import_module("tensorflow.core.protobuf.saved_model_pb2")
    file = path / "saved_model.pb"
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError("it is far too large")
        return protos.SavedModel.FromString(file.read_bytes())
    except Exception as error:  # of the parser whatever it finds
        raise UsageError(f"the SavedModel {str(path)!r} cannot be read: {_line(error)}") from error


def _signature(signatures: Any, path: Path) -> Any:
    names = list(signatures)
    if _SIGNATURE in names:
        return signatures[_SIGNATURE]
    if len(names) == 1:
        return signatures[names[0]]
    said = f"several ({', '.join(names)})" if names else "none"
    raise UsageError(f"the SavedModel {str(path)!r} has no signature {_SIGNATURE!r}, but {said}: export it with one")


def _spec(name: str, spec: Any) -> Spec:
    if spec.shape.rank is None:
        raise UsageError(f"the SavedModel does not say the shape of its input {name!r}: export it with one")
    return Spec(name, tuple(spec.shape[1:]), spec.dtype.name)


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"the SavedModel {str(path)!r} is refused: {why}")


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
