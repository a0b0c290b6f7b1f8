"""`export`: an `ExportModule` becomes a SavedModel that is known to answer as the live model does."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.engine.strategy import suspended
from everstep.errors import TrainingError, UsageError, nearest
from everstep.export import calling, origins, tensorflow_files
from everstep.export.comparison import check_same
from everstep.export.from_checkpoint import load_checkpoint
from everstep.export.module import ExportModule
from everstep.export.versions import Version, new_version

_DEFAULT = "serving_default"


def export(
    module: ExportModule,
    function_keys: Sequence[str] | Mapping[str, str],
    directory: storage.PathLike,
    checkpoint_path: storage.PathLike | None = None,
    timestamped: bool = True,
    save_options: Any = None,
    *,
    samples: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Writes functions of a module as the signatures of a SavedModel, and returns where it is.

    It is written under another name, loaded back by TensorFlow, and every signature is compared with the live
    function before it takes its own. It holds the variables of the model and nothing of the optimizer.

    Args:
      module: What to export.
      function_keys: The names of methods with those of their signatures, such as `{"serve": "serving_default"}`; or a
        list of one method, whose signature is `serving_default`.
      directory: Where to write: with `timestamped` a version below it, named by the second or the next free number,
        as TensorFlow Serving watches them; otherwise the directory itself, where a SavedModel that is there is
        replaced.
      checkpoint_path: Where to take all of the model's weights from first: a run directory, its `checkpoints`, one of
        them, or anything else that `task.init_checkpoint` takes.
      timestamped: Whether to write a version below `directory`.
      save_options: A `tf.saved_model.SaveOptions`.
      samples: For each method a batch of inputs to compare answers on: its argument, or, of several, a tuple or a
        mapping by name. Numbers are made up where none is given; strings have to be given.
      origin: What to say in the SavedModel's `assets.extra/everstep.json` of where it comes from.

    Returns:
      The directory of the SavedModel.

    Raises:
      UsageError: The request cannot be carried out; nothing is written.
      TrainingError: What was written answers otherwise than the module. Nothing is left of it.
    """
    tensorflow_files.require_support()
    keys = _function_keys(module, function_keys)
    samples = _samples(keys, samples)
    if checkpoint_path is not None:
        load_checkpoint(module.model, checkpoint_path)
    _require_built(module.model)
    if module.input_signature is None and "serve" in samples and _takes_one(module.serve):
        module.input_signature = calling.spec_of(samples["serve"])
    with suspended(), _target(Path(directory), timestamped) as target:
        _write_and_compare(module, keys, samples, target, save_options)
        if origin is not None:
            origins.write(target.temporary, origin)
    return str(target.path)


def _function_keys(module: ExportModule, keys: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Returns method to signature."""
    if not isinstance(keys, Mapping):
        names = [keys] if isinstance(keys, str) else list(keys)
        if len(names) != 1:
            raise UsageError(
                f"export: function_keys: received {names}, but a list names one method, for {_DEFAULT!r}; for several "
                f"give their signatures: {{{', '.join(f'{name!r}: …' for name in names) or repr('serve') + ': …'}}}"
            )
        keys = {names[0]: _DEFAULT}
    for name in keys:
        if not callable(getattr(module, name, None)):
            methods = [n for n, _ in inspect.getmembers(type(module), callable) if not n.startswith("_")]
            raise UsageError(
                f"export: function_keys: {type(module).__name__} has no method {name!r}; {nearest(name, methods)}"
            )
    if not keys or len(set(keys.values())) < len(keys):
        raise UsageError(f"export: function_keys: received {dict(keys)}; every method needs a signature of its own")
    return dict(keys)


def _samples(keys: Mapping[str, str], samples: Mapping[str, Any] | None) -> Mapping[str, Any]:
    samples = samples if samples is not None else {}
    unknown = [name for name in samples if name not in keys]
    if unknown:
        raise UsageError(f"export: samples: {unknown[0]!r} is not exported; exported are: {', '.join(keys)}")
    return samples


def _require_built(model: keras.Model) -> None:
    if not model.built:
        raise UsageError(f"export: model {model.name!r} has no variables yet: call it once on a batch before")


def _takes_one(function: Any) -> bool:
    # A method that TensorFlow compiles says itself what it takes.
    return not hasattr(function, "get_concrete_function") and len(inspect.signature(function).parameters) == 1


@contextlib.contextmanager
def _target(directory: Path, timestamped: bool) -> Iterator[Version]:
    if timestamped:
        with new_version(directory) as version:
            yield version
        return
    tensorflow_files.require_replaceable(directory)
    storage.prepare_directory(directory.parent)
    with storage.atomic_path(directory) as temporary:
        whole = Version(temporary)
        yield whole
    whole.path = directory


def _write_and_compare(
    module: ExportModule, keys: Mapping[str, str], samples: Mapping[str, Any], target: Version, options: Any
) -> None:
    with tensorflow_files.quiet(), _variables_of(module) as archive:
        concretes = module.get_inference_signatures(keys)
        for resource in _resources(module):
            archive.track(resource)
        calls = {}
        for name, key in keys.items():
            if key not in concretes:
                raise UsageError(f"export: get_inference_signatures returned no {key!r}, but {', '.join(concretes)}")
            calls[key] = concretes[key], calling.arguments(concretes[key], samples.get(name), name)
        live = {key: calling.live(getattr(module, name), calls[key][1], module.model) for name, key in keys.items()}
        for key, (concrete, _) in calls.items():
            archive.add_endpoint(key, _endpoint(concrete))
        archive.write_out(target.temporary, options=options, verbose=False)
        answers = calling.loaded(target.temporary, calls)
    for key, expected in live.items():
        _compare(module.model, key, expected, answers[key])


def _compare(model: keras.Model, key: str, expected: calling.Outputs, actual: calling.Outputs) -> None:
    if set(expected) != set(actual):
        raise TrainingError(f"the signature {key!r} loads back with {sorted(actual)}, not {sorted(expected)}")
    check_same(model, list(expected.values()), [actual[name] for name in expected], f"the signature {key!r}")


@contextlib.contextmanager
def _variables_of(module: ExportModule) -> Iterator[Any]:
    """Yields an archive that holds the module's variables; inside the block the module uses those."""
    archive = keras.export.ExportArchive()
    tracked = [layer for layer in module.layers if layer.built]
    for layer in tracked:
        archive.track(layer)
    if keras.backend.backend() == "jax":
        trainable = [v for layer in tracked for v in layer.trainable_variables]
        others = [v for layer in tracked for v in layer.non_trainable_variables]
        stand_ins = [*archive.trainable_variables, *archive.non_trainable_variables]
        module.bridge.variables = list(zip([*trainable, *others], stand_ins, strict=True))
    try:
        yield archive
    finally:
        module.bridge.variables = []


def _resources(module: ExportModule) -> list[Any]:
    """Returns what of TensorFlow's, such as tables of words, the module and its layers hold beside variables."""
    import tensorflow as tf

    layers = [inner for layer in module.layers for inner in layer._flatten_layers()]
    held = [value for holder in (module, *layers) for value in vars(holder).values()]
    trackable, known = tf.__internal__.tracking.Trackable, (keras.Layer, tf.Variable, keras.Variable)
    return [value for value in held if isinstance(value, trackable) and not isinstance(value, known)]


def _endpoint(concrete: Any) -> Any:
    """Returns a function that TensorFlow saves under the names its inputs have."""
    import tensorflow as tf

    endpoint = tf.function(lambda *args: concrete(*args), autograph=False)
    endpoint.get_concrete_function(*concrete.structured_input_signature[0])
    return endpoint
