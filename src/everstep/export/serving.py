"""`ExportModule`, a model with its preprocessing and postprocessing, and `export`, which writes it as a SavedModel.

Every signature of the SavedModel is loaded back and compared with the live function before the directory gets its
name.
"""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.engine import suspended
from everstep.errors import TrainingError, UsageError, nearest
from everstep.export import saved_model
from everstep.export.comparison import check_same, unchanged
from everstep.export.jax_bridge import Bridge
from everstep.export.model_export import load_checkpoint, random_input
from everstep.export.versions import Version, new_version

Outputs = dict[str, np.ndarray]

_DEFAULT = "serving_default"
_ORIGIN = Path("assets.extra", "everstep.json")


class ExportModule:
    """The functions of a SavedModel: preprocessing, the model, postprocessing.

        module = ExportModule(params, model, preprocessor=lambda x: x / 255.0, postprocessor=keras.ops.softmax)
        directory = export(module, ["serve"], "serving/mnist", samples={"serve": images})

    Preprocessor and postprocessor are Keras layers, functions of `keras.ops`, or functions of TensorFlow: a SavedModel
    is TensorFlow's on every backend, so decoding and parsing (`tf.io`) also work with a model trained on JAX.

    Subclass it for other functions: one that takes several arguments, a second one for serialized examples. Their
    bodies are TensorFlow code on every backend and call `self.preprocessor`, `self.inference_step` and
    `self.postprocessor`, which may contain Keras code. Either decorate them with
    `@tf.function(input_signature=…)` or override `get_inference_signatures`.

    Args:
      params: The experiment's configuration, for subclasses; or None.
      model: The trained model.
      inference_step: `(inputs, model) -> outputs`, such as `task.inference_step`; by default the model's outputs
        outside training.
      preprocessor: Converts the inputs of `serve` to the model's inputs.
      postprocessor: Converts the model's outputs to what `serve` returns: a tensor, a list, or a dictionary of tensors.
      input_signature: `tf.TensorSpec` or `keras.InputSpec` of the inputs of `serve`; needed if there is a preprocessor
        and `export` gets no sample.

    Attributes:
      params: The experiment's configuration, or None.
      model: The trained model.
      inference_step: The inference step as a function of the inputs alone.
      preprocessor: The preprocessor as a function of TensorFlow's tensors; or None.
      postprocessor: The postprocessor as a function of TensorFlow's tensors; or None.
      input_signature: The inputs of `serve`; `export` sets it from a sample.
      bridge: Connects Keras code of the JAX backend to the SavedModel.
    """

    def __init__(
        self,
        params: Any,
        model: keras.Model,
        inference_step: Callable[..., Any] | None = None,
        *,
        preprocessor: Callable[[Any], Any] | None = None,
        postprocessor: Callable[[Any], Any] | None = None,
        input_signature: Any = None,
    ) -> None:
        self.params, self.model, self.input_signature = params, model, input_signature
        self.bridge = Bridge()
        step = inference_step or (lambda inputs, model: model(inputs, training=False))
        self.inference_step = self.bridge.part(functools.partial(step, model=model), keras_only=True)
        self.preprocessor = self.bridge.part(preprocessor) if preprocessor else None
        self.postprocessor = self.bridge.part(postprocessor) if postprocessor else None
        self.layers = [model, *(part for part in (preprocessor, postprocessor) if isinstance(part, keras.Layer))]

    def serve(self, inputs: Any) -> Any:
        """Returns the outputs for a batch of inputs."""
        if self.preprocessor is not None:
            inputs = self.preprocessor(inputs)
        outputs = self.inference_step(inputs)
        return outputs if self.postprocessor is None else self.postprocessor(outputs)

    def get_inference_signatures(self, function_keys: Mapping[str, str]) -> dict[str, Any]:
        """Returns the functions to export as TensorFlow's concrete functions, by the names of their signatures.

        Args:
          function_keys: The names of the methods, each with the name of its signature.
        """
        return {key: self._traced(name) for name, key in function_keys.items()}

    def _traced(self, name: str) -> Any:
        import tensorflow as tf

        function = getattr(self, name)
        if getattr(function, "input_signature", None) is not None:
            return function.get_concrete_function()
        if not hasattr(function, "get_concrete_function"):
            function = tf.function(function, autograph=False)
        return function.get_concrete_function(self._input_specs(name))

    def _input_specs(self, name: str) -> Any:
        """Returns the input specs of a function: the given signature, or the model's declared inputs."""
        if self.input_signature is not None:
            return _named(self.input_signature)
        structure = getattr(self.model, "_inputs_struct", None) or getattr(self.model, "inputs", None)
        if self.preprocessor is not None or not structure:
            raise UsageError(
                f"the inputs of {name!r} are unknown",
                key="samples",
                remedy=f"pass a batch, samples={{{name!r}: …}}, or ExportModule(…, input_signature=tf.TensorSpec(…))",
            )
        single = isinstance(structure, list) and len(structure) == 1
        return _named(structure[0] if single else structure)


def _named(specs: Any, name: str | None = None) -> Any:
    """Returns `tf.TensorSpec`s for anything with shape and dtype; names that the user chose are kept."""
    import tensorflow as tf

    if isinstance(specs, Mapping):
        return {key: _named(value, key) for key, value in specs.items()}
    if isinstance(specs, list | tuple):
        return type(specs)(_named(value) for value in specs)
    given = getattr(specs, "name", None) or ""
    name = name or (None if given.startswith("keras_tensor") else given or None)
    return tf.TensorSpec(specs.shape, specs.dtype or keras.config.floatx(), name)


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
    """Writes functions of a module as the signatures of a SavedModel; returns its directory.

    It is written under a temporary name and loaded back by TensorFlow, and every signature is compared with the live
    function before it gets its own name. It contains the variables of the model and none of the optimizer.

    Args:
      module: The module to export.
      function_keys: The names of methods, each with the name of its signature, such as
        `{"serve": "serving_default"}`; or a list of one method, whose signature is `serving_default`.
      directory: With `timestamped` the directory for numbered versions, as TensorFlow Serving watches them: the new
        one is named by the current second, or the next free number. Otherwise the directory to write; an existing
        SavedModel is replaced.
      checkpoint_path: The checkpoint to load all of the model's weights from first: a run directory, its
        `checkpoints`, one of them, or anything else that `task.init_checkpoint` takes.
      timestamped: Whether to write a numbered version below `directory`.
      save_options: A `tf.saved_model.SaveOptions`.
      samples: A batch of inputs for each method, to compare outputs on: its argument; for several arguments a tuple,
        or a mapping by name. By default random numbers; for strings a sample is required.
      origin: Where the SavedModel comes from, recorded in its `assets.extra/everstep.json`.

    Returns:
      The directory of the SavedModel.

    Raises:
      UsageError: The request cannot be carried out; nothing is written.
      TrainingError: The SavedModel has other outputs than the module; it is removed.
    """
    saved_model.require_support()
    keys = _function_keys(module, function_keys)
    samples = samples if samples is not None else {}
    for name in samples:
        if name not in keys:
            raise UsageError(f"is not exported; exported are: {', '.join(keys)}", key="samples", received=name)
    if checkpoint_path is not None:
        load_checkpoint(module.model, checkpoint_path)
    if not module.model.built:
        raise UsageError("has no variables yet", key="model", received=module.model.name, remedy="call it on a batch")
    if module.input_signature is None and "serve" in samples and _takes_one(module.serve):
        module.input_signature = _spec_of(samples["serve"])
    with suspended(), _target(Path(directory), timestamped) as target:
        _write_and_compare(module, keys, samples, target, save_options)
        if origin is not None:
            write_origin(target.temporary, origin)
    return str(target.path)


def _function_keys(module: ExportModule, keys: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Returns method to signature."""
    if not isinstance(keys, Mapping):
        names = [keys] if isinstance(keys, str) else list(keys)
        if len(names) != 1:
            raise UsageError(
                f"a list names one method, for {_DEFAULT!r}",
                key="function_keys",
                received=names,
                remedy=f"pass signatures: {{{', '.join(f'{name!r}: …' for name in names or ['serve'])}}}",
            )
        keys = {names[0]: _DEFAULT}
    for name in keys:
        if not callable(getattr(module, name, None)):
            methods = [n for n, _ in inspect.getmembers(type(module), callable) if not n.startswith("_")]
            raise UsageError(
                f"{type(module).__name__} has no such method",
                key="function_keys",
                received=name,
                remedy=nearest(name, methods),
            )
    if not keys or len(set(keys.values())) < len(keys):
        raise UsageError("every method needs a signature of its own", key="function_keys", received=dict(keys))
    return dict(keys)


def _takes_one(function: Any) -> bool:
    # A tf.function has its own input signature.
    return not hasattr(function, "get_concrete_function") and len(inspect.signature(function).parameters) == 1


@contextlib.contextmanager
def _target(directory: Path, timestamped: bool) -> Iterator[Version]:
    if timestamped:
        with new_version(directory) as version:
            yield version
        return
    saved_model.require_replaceable(directory)
    storage.prepare_directory(directory.parent)
    with storage.atomic_path(directory) as temporary:
        whole = Version(temporary)
        yield whole
    whole.path = directory


def _write_and_compare(
    module: ExportModule, keys: Mapping[str, str], samples: Mapping[str, Any], target: Version, options: Any
) -> None:
    with saved_model.quiet(), _variables_of(module) as archive:
        concretes = module.get_inference_signatures(keys)
        for resource in _resources(module):
            archive.track(resource)
        calls = {}
        for name, key in keys.items():
            if key not in concretes:
                raise UsageError(f"returned no {key!r}, but {', '.join(concretes)}", key="get_inference_signatures")
            calls[key] = concretes[key], _arguments(concretes[key], samples.get(name), name)
        live = {key: _live_outputs(getattr(module, name), calls[key][1], module.model) for name, key in keys.items()}
        for key, (concrete, _) in calls.items():
            archive.add_endpoint(key, _endpoint(concrete))
        archive.write_out(target.temporary, options=options, verbose=False)
        loaded = _loaded_outputs(target.temporary, calls)
    for key, expected in live.items():
        actual = loaded[key]
        if set(expected) != set(actual):
            raise TrainingError(
                f"loads back with {sorted(actual)}, not {sorted(expected)}", key="signature", received=key
            )
        check_same(module.model, list(expected.values()), [actual[name] for name in expected], key, "signature")


@contextlib.contextmanager
def _variables_of(module: ExportModule) -> Iterator[Any]:
    """Yields an archive that tracks the module's variables; inside the block the module uses those of the archive."""
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
    """Returns TensorFlow objects other than variables that the module and its layers hold, such as lookup tables."""
    import tensorflow as tf

    layers = [inner for layer in module.layers for inner in layer._flatten_layers()]
    held = [value for holder in (module, *layers) for value in vars(holder).values()]
    trackable, known = tf.__internal__.tracking.Trackable, (keras.Layer, tf.Variable, keras.Variable)
    return [value for value in held if isinstance(value, trackable) and not isinstance(value, known)]


def _endpoint(concrete: Any) -> Any:
    """Returns a function that TensorFlow saves with the names of its inputs."""
    import tensorflow as tf

    endpoint = tf.function(lambda *args: concrete(*args), autograph=False)
    endpoint.get_concrete_function(*concrete.structured_input_signature[0])
    return endpoint


def _spec_of(sample: Any) -> Any:
    """Returns the input signature of a sample, with any batch size."""
    import tensorflow as tf

    tensors = keras.tree.map_structure(tf.convert_to_tensor, sample)
    return keras.tree.map_structure(
        lambda tensor: keras.InputSpec(shape=(None, *tensor.shape[1:]), dtype=tensor.dtype.name), tensors
    )


def _arguments(concrete: Any, sample: Any, name: str) -> tuple:
    """Returns the positional arguments for a concrete function: the given sample, or random numbers.

    Args:
      concrete: The function.
      sample: Its one argument; for several a tuple, or a mapping by name; None for random numbers.
      name: The function's name, for error messages.

    Raises:
      UsageError: The sample does not fit, or is missing although the function takes strings.
    """
    import tensorflow as tf

    def tensor(spec: Any, leaf: Any) -> Any:
        converted = tf.constant(leaf, spec.dtype)
        if not spec.shape.is_compatible_with(converted.shape):
            raise ValueError(f"shape {tuple(converted.shape)} where {spec.shape} is expected")
        return converted

    def random(spec: Any) -> Any:
        if spec.dtype == tf.string or spec.shape.rank is None:
            raise UsageError(
                f"{name!r} takes {spec}, for which there are no random inputs",
                key="samples",
                remedy=f"pass a batch to compare on: samples={{{name!r}: …}}",
            )
        return tf.constant(random_input(spec.shape, spec.dtype.name), spec.dtype)

    specs = concrete.structured_input_signature[0]
    if sample is None:
        return keras.tree.map_structure(random, specs)
    if len(specs) == 1:
        given: tuple = (sample,)
    else:
        given = tuple(sample[spec.name] for spec in specs) if isinstance(sample, Mapping) else tuple(sample)
    try:
        return keras.tree.map_structure(tensor, specs, given)
    except (ValueError, TypeError) as error:
        raise UsageError(f"does not fit the function's inputs {specs}: {error}", key=f"samples[{name!r}]") from error


def _live_outputs(function: Any, args: tuple, model: keras.Model) -> Outputs:
    """Returns the outputs of a module's function, run eagerly; the model is left unchanged."""
    with unchanged(model.non_trainable_variables), _eagerly():
        return _by_name(function(*args))


def _loaded_outputs(directory: Path, calls: Mapping[str, tuple[Any, tuple]]) -> dict[str, Outputs]:
    """Returns the outputs of a SavedModel, by signature.

    Args:
      directory: The SavedModel.
      calls: For each signature, the concrete function it was written from and the arguments to call it with.
    """
    import tensorflow as tf

    with saved_model.quiet():
        model = tf.saved_model.load(str(directory))
    found = {}
    for key, (concrete, args) in calls.items():
        names = [spec.name for spec in tf.nest.flatten(concrete.structured_input_signature[0])]
        outputs = model.signatures[key](**dict(zip(names, tf.nest.flatten(args), strict=True)))
        found[key] = {name: np.asarray(value) for name, value in outputs.items()}
    return found


def _by_name(outputs: Any) -> Outputs:
    """Returns outputs by the names that a signature gives them."""
    if not isinstance(outputs, Mapping):
        listed = outputs if isinstance(outputs, list | tuple) else [outputs]
        outputs = {f"output_{index}": output for index, output in enumerate(listed)}
    nested = [str(name) for name, output in outputs.items() if isinstance(output, Mapping | list | tuple)]
    if nested:
        raise UsageError(
            f"a signature returns tensors by name, but {', '.join(nested)} holds several",
            key="export",
            remedy="give each tensor a name of its own",
        )
    return {str(name): np.asarray(output) for name, output in outputs.items()}


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Inside the block tf.functions run eagerly: on JAX that calls the model itself instead of its conversion."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def write_origin(directory: Path, origin: Mapping[str, Any]) -> None:
    """Records in a SavedModel where it comes from."""
    (directory / _ORIGIN).parent.mkdir(exist_ok=True)
    storage.write_json(directory / _ORIGIN, origin)


def read_origin(directory: Path) -> dict[str, Any] | None:
    """Returns the recorded origin of a SavedModel; None if there is none."""
    try:
        origin = json.loads((directory / _ORIGIN).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None
