"""Loads `.keras` files and SavedModels that others may have written, without running any of their code.

A `.keras` file names the classes of a model. Only Keras's own classes and those registered in this process are
accepted, and none that would run code or open files. The weights are read as `task.init_checkpoint` reads them. A
SavedModel is a program: before TensorFlow loads it, every operation in it is checked by name, and one that would open
files or run Python is refused.
"""

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import json
import math
import pkgutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.data import load_tensorflow
from everstep.errors import UsageError
from everstep.export import load_checkpoint, quiet_about_optimizer, saved_model
from everstep.keras_internals import global_state
from everstep.run import FLAG, Chosen, as_checkpoint, choose
from everstep.task.initial import archive_member, load
from everstep.trained.inputs import Spec

_LARGEST_CONFIG = 64 << 20
_MOST_GROWTH = 4  # in memory a model may be this much larger than its file: types, and what is not stored
_SMALL = 64 << 20  # bytes that any model may have
_HARMFUL = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__"}
_PLAIN = {"__tensor__", "__numpy__", "__tuple__", "__ellipsis__", "__slice__", "__bytes__", "__complex__"}
_PLAIN |= {"__keras_tensor__", "__np_dtype__", "__typespec__"}
_PARTS = {"activations", "constraints", "dtype_policies", "initializers", "layers", "models", "ops", "random"}
_PARTS |= {"regularizers", "quantizers", "backend", "losses", "metrics", "optimizers"}
_FUNCTIONS = {"activations", "initializers", "losses", "metrics", "ops", "random"}  # of which none opens files

_MOVED = {
    "actions": "loop.actions",
    "bct": "recipes.bct",
    "catalog": "projects.catalog",
    "components": "projects.components",
    "fitting": "frontends.fit",
    "flow": "projects.flow",
    "frontends.catalog": "projects.catalog",
    "frontends.components": "projects.components",
    "frontends.flow": "projects.flow",
    "frontends.training": "projects.training",
    "grad": "task.grad",
    "inference": "export.predict",
    "multitask": "task.multitask",
    "optim": "task.optim",
    "launch.submit": "submit",
    "launch.sweep": "sweeps",
    "launch.tuner": "tuner",
    "quick": "tuner",
    "remote": "checkpoint.remote",
    "report": "evaluation.report",
    "reproduce": "run.reproduce",
    "sweeps.tuner": "tuner",
    "training": "projects.training",
    "zoo": "recipes",
}
"""Packages of Everstep as earlier files name them, and where they are today."""


class KerasPredictor:
    """A Keras model, called batch by batch.

    Raises:
      UsageError: The model does not declare its inputs.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        inputs = getattr(model, "inputs", None)  # a subclass of keras.Model has none
        structure = getattr(model, "_inputs_struct", None)  # a tensor, or several in any nesting
        self._structure = list(inputs or ()) if structure is None else structure
        if not inputs:
            raise UsageError(
                "declares no inputs", key="model", received=model.name, remedy="predict with its SavedModel"
            )
        self.specs = [
            Spec(each.name, tuple(each.shape[1:]), keras.backend.standardize_dtype(each.dtype))
            for each in keras.tree.flatten(self._structure)
        ]
        self._step = _predict_step(model)

    def predict(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """Returns the outputs by name, for arrays in the order of `specs`; the device may still compute them."""
        outputs = self._step(self.nested(arrays))
        if not isinstance(outputs, Mapping):
            listed = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
            names = list(getattr(self.model, "output_names", None) or ())
            if len(set(names)) != len(listed):
                names = [f"output_{index}" for index in range(len(listed))]
            outputs = dict(zip(names, listed, strict=True))
        return {str(name): value for name, value in outputs.items()}

    def nested(self, arrays: list[np.ndarray]) -> Any:
        """Returns arrays in the order of `specs` as the model takes them."""
        nested = keras.tree.pack_sequence_as(self._structure, arrays)
        return nested[0] if isinstance(nested, list) and len(nested) == 1 else nested

    def activation(self) -> str:
        """Returns the last layer's activation, `softmax` or `sigmoid`; empty if it is unknown."""
        last = self.model.layers[-1] if self.model.layers else None
        kind = getattr(last, "activation", None)
        name = getattr(kind, "__name__", "") or type(last).__name__.lower()
        return name if name in ("softmax", "sigmoid") else ""


_ATTRIBUTE = "_everstep_predict_step"


def _predict_step(model: keras.Model) -> Callable[[Any], Any]:
    """Returns a function from inputs to outputs, which runs `model.predict_step` as `predict_on_batch` does.

    It does not wait for the outputs. On JAX, Keras assigns all variables after each batch; this function assigns those
    that have changed. What it compiles is kept with the model, until that is compiled anew.
    """
    model.make_predict_function()
    function = model.predict_function
    if keras.backend.backend() != "jax":
        return lambda inputs: function([(inputs,)])
    import jax

    kept = vars(model).get(_ATTRIBUTE)
    if kept is None or kept[0] is not function:
        compiled = model.jit_compile and not model.run_eagerly
        step = jax.jit(model.predict_step) if compiled else model.predict_step
        kept = vars(model)[_ATTRIBUTE] = function, step
    trainable, others = model.trainable_variables, model.non_trainable_variables

    def predict(inputs: Any) -> Any:
        state = [variable.value for variable in trainable], [variable.value for variable in others]
        outputs, values = kept[1](state, (inputs,))
        for variable, value in zip(others, values, strict=True):
            if value is not variable.value:
                variable.assign(value)
        return outputs

    return predict


def load_keras(path: Path) -> keras.Model:
    """Returns the model in a `.keras` file, for predictions.

    Raises:
      UsageError: The file cannot be read, needs classes that are not registered, or is refused because of what it
        would do.
    """
    config = _read_config(path)
    for part in _described_parts(config):
        _require_harmless_part(part, path)
    _require_modest_size(config, path)
    model = _load(path, lambda: _from_config(config))
    if model.weights:
        load(model, str(path), key="the model", complete=True)
    with zipfile.ZipFile(path) as file:
        has_assets = any(name.startswith("assets/") and not name.endswith("/") for name in file.namelist())
    if has_assets:  # vocabularies; the names and sizes in the archive and the weights have been checked above
        with quiet_about_optimizer():
            return _load(path, lambda: keras.saving.load_model(path, compile=False, safe_mode=True))
    return model


_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics")
"""What of a model's compilation an evaluation needs."""


def compile_as_saved(model: keras.Model, path: Path) -> bool:
    """Compiles a model with the loss and the metrics in its `.keras` file; returns whether there are any.

    Raises:
      UsageError: One of them is not registered, or would run code.
    """
    saved = _read_whole_config(path).get("compile_config")
    if not isinstance(saved, dict) or not saved.get("loss"):
        return False
    config = {name: saved[name] for name in _COMPILED if saved.get(name)}
    for part in _described_parts(config):
        _require_harmless_part(part, path)
    model.compile(**_load(path, lambda: keras.saving.deserialize_keras_object(config, safe_mode=True)))
    return True


def _load(path: Path, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:  # Keras raises many kinds for a configuration that somebody else wrote
        reason = str(error).rpartition("Exception encountered: ")[2].strip().partition("\n")[0][:300]
        raise UsageError(f"cannot be loaded: {reason}", key="model", received=str(path)) from error


def _read_config(path: Path) -> dict[str, Any]:
    return {key: value for key, value in _read_whole_config(path).items() if key != "compile_config"}


def _read_whole_config(path: Path) -> dict[str, Any]:
    try:
        with archive_member(path, "config.json", _LARGEST_CONFIG) as file:
            config = json.load(file)
        _require_modest_archive(path)
    except UsageError as error:
        raise UsageError([dataclasses.replace(problem, key="model") for problem in error.problems]) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its config.json cannot be read: {error}", key="model", received=str(path)) from error
    if not isinstance(config, dict):
        raise UsageError("its config.json describes no model", key="model", received=str(path))
    return config


def _require_modest_archive(path: Path) -> None:
    limit = max(_MOST_GROWTH * path.stat().st_size, _SMALL)
    with zipfile.ZipFile(path) as file:
        if (size := sum(info.file_size for info in file.infolist())) > limit:
            raise UsageError(
                f"is refused: it unpacks to {size:,} bytes, far more than a model's file does",
                key="model",
                received=str(path),
            )


def _described_parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every part of a configuration that names a class or has a vocabulary."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            if "class_name" in each or "vocabulary" in each:
                yield each
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)


def _require_harmless_part(part: Mapping[str, Any], path: Path) -> None:
    if isinstance(part.get("vocabulary"), str):
        raise _refused_file(path, f"a vocabulary in it would be read from {part['vocabulary']!r}")
    name, module = part.get("class_name"), part.get("module")
    if name is None:
        return
    if not isinstance(name, str) or name in _HARMFUL:
        raise _refused_file(path, f"it holds {name!r}, which runs code")
    if name in _PLAIN or _belongs_to_keras(name, module, part):
        return
    _import_own(module)
    known = keras.saving.get_custom_objects()
    registered = part.get("registered_name") if name != "function" else part.get("config")
    if registered not in known and name not in known:
        raise UsageError(
            f"needs {name if name != 'function' else registered!r} of {module!r}, which is not registered",
            key="model",
            received=str(path),
            remedy="import the module that registers it with --import "
            + ("keras_hub" if str(module).startswith("keras_hub.") else "MODULE"),
        )


def _belongs_to_keras(name: str, module: Any, part: Mapping[str, Any]) -> bool:
    """Returns whether a class or function is one of Keras's own that models consist of."""
    if not isinstance(module, str):
        return False
    steps = module.split(".")
    if steps == ["keras"]:
        return name in ("Sequential", "Functional", "Model", "Variable", "DTypePolicy")
    inner = [step for step in steps[1:] if step != "src"]
    if steps[0] == "builtins" and name == "function":
        return isinstance(part.get("config"), str) and hasattr(keras.activations, part["config"])
    is_function = name == "function" or name[:1].islower()
    return steps[0] == "keras" and bool(inner) and inner[0] in (_FUNCTIONS if is_function else _PARTS)


def _import_own(module: Any) -> None:
    """Imports the module of one of Everstep's own classes, which registers it; a file can name no other module."""
    for name in _own_modules(module) if isinstance(module, str) else ():
        with contextlib.suppress(ImportError):  # then the class is missing, which is reported
            importlib.import_module(name)


def _own_modules(module: str) -> list[str]:
    """Returns the modules that hold the classes of a module of Everstep today; [] for any other module.

    A module that no longer exists was merged into another one of its package: then all of the package are returned.
    """
    steps = module.split(".")
    if steps[0] != "everstep" or len(steps) < 2 or any(step.startswith("_") for step in steps):
        return []
    for length in (3, 2):
        if (today := _MOVED.get(".".join(steps[1:length]))) is not None:
            steps[1:length] = today.split(".")
            break
    steps = steps[1:]
    module, package = ".".join(["everstep", *steps]), ".".join(["everstep", *steps[:-1]])
    with contextlib.suppress(ImportError):
        if importlib.util.find_spec(module) is not None or len(steps) == 1:
            return [module]
        held = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
        return [found.name for found in held if not found.ispkg]
    return []


def _refused_file(path: Path, why: str) -> UsageError:
    return UsageError(f"is refused: {why}", key="model", received=str(path), remedy="export it as a SavedModel instead")


def _require_modest_size(config: Mapping[str, Any], path: Path) -> None:
    """Refuses a model that is far larger than its file: it is first built without memory for its variables."""
    limit = max(_MOST_GROWTH * path.stat().st_size, _SMALL)
    pending = list(global_state.get_global_attribute("uninitialized_variables") or ())
    size = 0
    try:
        with keras.StatelessScope(initialize_variables=False):
            size = sum(math.prod(v.shape) * 4 for v in _from_config(config).variables)
    except Exception:  # building the model with its variables raises it again, where it is reported
        size = max(_whole_numbers(config), default=0)
    finally:
        global_state.set_global_attribute("uninitialized_variables", pending)
    if size > limit:
        raise _refused_file(path, f"it would take {size:,} bytes, and the file has {path.stat().st_size:,}")


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping | list):
        sizes = {k: v for k, v in value.items() if k != "shared_object_id"} if isinstance(value, Mapping) else {}
        for each in sizes.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield abs(value)


def _from_config(config: Mapping[str, Any]) -> keras.Model:
    model = keras.saving.deserialize_keras_object(copy.deepcopy(dict(config)), safe_mode=True)  # Keras empties it
    if not isinstance(model, keras.Model):
        raise ValueError(f"it describes a {type(model).__name__}, not a model")
    return model


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
    """A SavedModel's signature, called batch by batch, on any Keras backend.

    Raises:
      UsageError: It is refused, cannot be loaded, or has no signature to call.
    """

    def __init__(self, path: Path) -> None:
        _require_harmless_saved_model(path)
        self._tf = load_tensorflow("predicting with a SavedModel")
        try:
            with saved_model.quiet():
                self._loaded = self._tf.saved_model.load(str(path))
        except Exception as error:  # TensorFlow raises many kinds
            raise UsageError(f"cannot be loaded: {_line(error)}", key="SavedModel", received=str(path)) from error
        self._function = _signature(self._loaded.signatures, path)
        inputs = self._function.structured_input_signature[1]
        self._keys = list(inputs)
        self.specs = [_tensor_spec(name, inputs[name]) for name in self._keys]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name, for arrays in the order of `specs`."""
        tensors = {
            key: self._tf.constant(array.tolist() if spec.dtype == "string" else array, spec.dtype)
            for key, spec, array in zip(self._keys, self.specs, arrays, strict=True)
        }
        return {name: np.asarray(value) for name, value in self._function(**tensors).items()}

    def activation(self) -> str:
        """Returns an empty text: a SavedModel does not record its last activation."""
        return ""


def _require_harmless_saved_model(path: Path) -> None:
    """Refuses a SavedModel with operations that read or write files, or run Python.

    Raises:
      UsageError: It has one, is damaged, or contains a link or a file name that leads out of it.
    """
    for entry in path.rglob("*"):
        if entry.is_symlink():
            raise _refused_saved_model(path, f"{entry.name!r} in it is a link")
    for graph in _read(path).meta_graphs:
        for asset in graph.asset_file_def:
            if asset.filename.startswith(("/", "\\")) or ".." in Path(asset.filename).parts:
                raise _refused_saved_model(path, f"its file {asset.filename!r} leads out of it")
        for where, node in _nodes(graph):
            _require_harmless_node(node, where, path)


def _nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    yield from (("", node) for node in graph.graph_def.node)
    for function in graph.graph_def.library.function:
        yield from ((function.signature.name, node) for node in function.node_def)


def _require_harmless_node(node: Any, where: str, path: Path) -> None:
    if node.op.startswith(_PYTHON):
        raise _refused_saved_model(path, f"the operation {node.op} in it runs Python")
    prints_to_file = node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file:")
    if node.op.startswith(_FILES) or prints_to_file:
        raise _refused_saved_model(path, f"the operation {node.op} in it opens files")
    if where and node.op.startswith(_CHECKPOINTS) and not where.startswith(_OF_THE_SAVER):
        raise _refused_saved_model(path, f"the operation {node.op} in it opens files")
    calls = [value.func.name for value in node.attr.values() if value.HasField("func")]
    if where and any(name.startswith(_OF_THE_SAVER) for name in (*calls, node.op)):
        raise _refused_saved_model(path, f"a function in it calls {next(iter(calls), node.op)!r}, which opens files")


def _read(path: Path) -> Any:
    load_tensorflow("predicting with a SavedModel")
    protos = importlib.import_module("tensorflow.core.protobuf.saved_model_pb2")
    file = path / "saved_model.pb"
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError("it is far too large")
        return protos.SavedModel.FromString(file.read_bytes())
    except Exception as error:  # the parser raises many kinds
        raise UsageError(f"cannot be read: {_line(error)}", key="SavedModel", received=str(path)) from error


def _signature(signatures: Any, path: Path) -> Any:
    names = list(signatures)
    if _SIGNATURE in names:
        return signatures[_SIGNATURE]
    if len(names) == 1:
        return signatures[names[0]]
    raise UsageError(
        f"has no signature {_SIGNATURE!r}, but {', '.join(names) or 'none'}",
        key="SavedModel",
        received=str(path),
        remedy="export it with one",
    )


def _tensor_spec(name: str, spec: Any) -> Spec:
    if spec.shape.rank is None:
        raise UsageError(f"its input {name!r} has no shape", key="SavedModel", remedy="export it with one")
    return Spec(name, tuple(spec.shape[1:]), spec.dtype.name)


def _refused_saved_model(path: Path, why: str) -> UsageError:
    return UsageError(f"is refused: {why}", key="SavedModel", received=str(path))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def load_run_checkpoint(model: keras.Model, directory: Path | None, wanted: str | int = "last") -> Chosen:
    """Loads the weights of a run's checkpoint into a model; returns the checkpoint.

    Args:
      model: The model, built.
      directory: The run directory; None for a model file, which has no checkpoints.
      wanted: The value of `--checkpoint`: a step, `best`, `last`, or several steps for their average.

    Raises:
      UsageError: There is no such checkpoint; the message lists those that exist.
      TrainingError: The checkpoint is damaged.
    """
    if directory is None:
        raise UsageError("a model alone has no checkpoints", key=FLAG, received=wanted, remedy="name the run directory")
    chosen = choose(directory, str(wanted))
    with as_checkpoint(chosen) as path:
        load_checkpoint(model, path)
    return chosen
