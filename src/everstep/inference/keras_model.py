"""Models in `.keras` files that somebody else may have written: none of what they say is run.

A file says of which classes a model is made. Only Keras's own are used, and those that this process has registered
already; none that would run code or open files. The weights are read as `task.init_checkpoint` reads them.
"""

import importlib
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from everstep.errors import UsageError
from everstep.inference.specs import Spec
from everstep.task.initial import archive
from everstep.task.initial.find import KEY
from everstep.task.initial.load import load

_LARGEST_CONFIG = 64 << 20
_ROOM = 4  # a model may be so much larger than its file: types, and what is not stored
_SMALL = 64 << 20
_HARMFUL = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__"}
_PLAIN = {"__tensor__", "__numpy__", "__tuple__", "__ellipsis__", "__slice__", "__bytes__", "__complex__"}
_PLAIN |= {"__keras_tensor__", "__np_dtype__", "__typespec__"}
_PARTS = {"activations", "constraints", "dtype_policies", "initializers", "layers", "models", "ops", "random"}
_PARTS |= {"regularizers", "quantizers", "backend", "losses", "metrics", "optimizers"}
_FUNCTIONS = {"activations", "initializers", "losses", "metrics", "ops", "random"}  # of which none opens files


class KerasPredictor:
    """A Keras model, asked batch by batch."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._structure = getattr(model, "_inputs_struct", None) or list(model.inputs or ())
        if not model.inputs:
            raise UsageError(f"the model {model.name!r} does not say what it takes: predict with its SavedModel")
        self.specs = [_spec(each) for each in keras.tree.flatten(self._structure)]

    def predict(self, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the model's outputs by name, for arrays in the order of `specs`."""
        outputs = self.model.predict_on_batch(self._nested(arrays))
        named = (
            outputs if isinstance(outputs, Mapping) else dict(zip(self._names(outputs), _listed(outputs), strict=True))
        )
        return {str(name): np.asarray(value) for name, value in named.items()}

    def activation(self) -> str:
        """Returns what the last layer applies: `softmax`, `sigmoid`; empty if nobody knows."""
        last = self.model.layers[-1] if self.model.layers else None
        kind = getattr(last, "activation", None)
        name = getattr(kind, "__name__", "") or type(last).__name__.lower()
        return name if name in ("softmax", "sigmoid") else ""

    def _nested(self, arrays: list[np.ndarray]) -> Any:
        nested = keras.tree.pack_sequence_as(self._structure, arrays)
        return nested[0] if isinstance(nested, list) and len(nested) == 1 else nested

    def _names(self, outputs: Any) -> list[str]:
        count = len(_listed(outputs))
        names = list(getattr(self.model, "output_names", None) or ())
        return names if len(set(names)) == count else [f"output_{index}" for index in range(count)]


def load_keras(path: Path) -> keras.Model:
    """Returns the model in a `.keras` file, for predictions.

    Raises:
      UsageError: It cannot be read, needs classes that are not there, or is refused because of what it would do.
    """
    config = _config(path)
    for part in _described(config):
        _require_harmless(part, path)
    _require_modest(config, path)
    model = _told(path, lambda: _made(config))
    if model.weights:
        load(model, str(path), key="the model", complete=True)
    if _has_files(path):  # vocabularies; names and sizes in the archive, and the weights, were looked at
        return _told(path, lambda: keras.saving.load_model(path, compile=False, safe_mode=True))
    return model


def _has_files(path: Path) -> bool:
    with zipfile.ZipFile(path) as file:
        return any(name.startswith("assets/") and not name.endswith("/") for name in file.namelist())


def _told(path: Path, make: Callable[[], keras.Model]) -> keras.Model:
    try:
        return make()
    except Exception as error:  # of Keras whatever it finds in a configuration that somebody else wrote
        reason = str(error).rpartition("Exception encountered: ")[2].strip().partition("\n")[0][:300]
        raise UsageError(f"the model {str(path)!r} cannot be loaded: {reason}") from error


def _config(path: Path) -> dict[str, Any]:
    try:
        with archive.member(path, "config.json", _LARGEST_CONFIG) as file:
            config = json.load(file)
        _refuse_bombs(path)
    except UsageError as error:
        raise UsageError(f"the model: {str(error).removeprefix(f'{KEY}: ')}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the model {str(path)!r} is broken: its config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"the model {str(path)!r} is broken: its config.json describes nothing")
    return {key: value for key, value in config.items() if key != "compile_config"}


def _refuse_bombs(path: Path) -> None:
    limit = max(_ROOM * path.stat().st_size, _SMALL)
    with zipfile.ZipFile(path) as file:
        if (size := sum(info.file_size for info in file.infolist())) > limit:
            raise UsageError(
                f"{str(path)!r} is refused: it unpacks to {size:,} bytes, far more than a model's file does"
            )


def _described(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields everything in a configuration that says something of a class, and what has a vocabulary."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if "class_name" in each or "vocabulary" in each:
                yield each
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _require_harmless(part: Mapping[str, Any], path: Path) -> None:
    if isinstance(part.get("vocabulary"), str):
        raise _refused(path, f"a vocabulary in it is to be read from {part['vocabulary']!r}")
    name, module = part.get("class_name"), part.get("module")
    if name is None:
        return
    if not isinstance(name, str) or name in _HARMFUL:
        raise _refused(path, f"it holds {name!r}, which runs code")
    if name in _PLAIN or _is_kerass(name, module, part):
        return
    _import_own(module)
    known = keras.saving.get_custom_objects()
    called = part.get("registered_name") if name != "function" else part.get("config")
    if called not in known and name not in known:
        raise UsageError(
            f"the model {str(path)!r} needs {name if name != 'function' else called!r} of {module!r}, which nobody "
            "here has registered: import the module that has it with --import MODULE"
        )


def _is_kerass(name: str, module: Any, part: Mapping[str, Any]) -> bool:
    """Tells whether a class or function is one of Keras's that models are made of."""
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
    """Has our own layers registered; no other module is imported because a file says so."""
    if isinstance(module, str) and module.startswith("everstep."):
        try:
            importlib.import_module(module)
        except ImportError:  # then the class is missing, which is said
            return


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"the model {str(path)!r} is refused: {why}; export it without, as a SavedModel")


def _require_modest(config: Mapping[str, Any], path: Path) -> None:
    """Refuses a model far larger than its file: it is built without memory for its variables first."""
    limit = max(_ROOM * path.stat().st_size, _SMALL)
    pending = list(global_state.get_global_attribute("uninitialized_variables") or ())
    size = 0
    try:
        with keras.StatelessScope(initialize_variables=False):
            size = sum(math.prod(v.shape) * 4 for v in _made(config).variables)
    except Exception:  # what Keras cannot build so, it says when it is built in earnest
        size = max((n for n in _whole_numbers(config)), default=0)
    finally:
        global_state.set_global_attribute("uninitialized_variables", pending)
    if size > limit:
        raise _refused(path, f"it would take {size:,} bytes, and the file has {path.stat().st_size:,}")


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield abs(value)


def _made(config: Mapping[str, Any]) -> keras.Model:
    model = keras.saving.deserialize_keras_object(dict(config), safe_mode=True)
    if not isinstance(model, keras.Model):
        raise ValueError(f"it describes a {type(model).__name__}, no model")
    return model


def _spec(tensor: Any) -> Spec:
    return Spec(tensor.name, tuple(tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]
