"""`ExportModule`, a model with its preprocessing and postprocessing, and `export`, which writes it as a SavedModel.

Every signature of the SavedModel is loaded back and compared with the live function before it takes its name.
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
from everstep.engine.strategy import suspended
from everstep.errors import TrainingError, UsageError, nearest
from everstep.export import saved_model
from everstep.export.comparison import check_same, unchanged
from everstep.export.jax_bridge import Bridge
from everstep.export.model_export import load_checkpoint, made_up
from everstep.export.versions import Version, new_version

Outputs = dict[str, np.ndarray]

_DEFAULT = "serving_default"
_ORIGIN = Path("assets.extra", "everstep.json")


class ExportModule:
    """What a SavedModel computes: preprocessing, the model, postprocessing.

        module = ExportModule(params, model, preprocessor=lambda x: x / 255.0, postprocessor=keras.ops.softmax)
        directory = export(module, ["serve"], "serving/mnist", samples={"serve": images})

    Preprocessor and postprocessor are Keras layers, functions of `keras.ops`, or functions of TensorFlow: a SavedModel
    is TensorFlow's on every backend, so decoding and parsing (`tf.io`) work with a model trained on JAX as well.

    Subclass it for other functions: one that takes several arguments, a second one for serialized examples. Their
    bodies are TensorFlow code on every backend and call `self.preprocessor`, `self.inference_step` and
    `self.postprocessor`, in which Keras code may stand. Either decorate them with
    `@tf.function(input_signature=…)` or write `get_inference_signatures`.

    Args:
      params: The experiment's configuration, or None; for subclasses.
      model: The trained model.
      inference_step: `(inputs, model) -> outputs`, such as `task.inference_step`; by default the model's outputs
        outside training.
      preprocessor: Makes the model's inputs of what `serve` is given.
      postprocessor: Makes of the model's outputs what `serve` returns: a tensor, a list, or a dictionary of tensors.
      input_signature: `tf.TensorSpec` or `keras.InputSpec` for what `serve` is given; needed where a preprocessor
        takes something else than the model and `export` is given no sample.

    Attributes:
      params: As given.
      model: As given.
      inference_step: A function of the inputs alone.
      preprocessor: As given, for TensorFlow's tensors; or None.
      postprocessor: As given, for TensorFlow's tensors; or None.
      input_signature: As given; `export` fills it in from a sample.
      bridge: Joins it to the variables of a SavedModel.
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
        """Returns what is to be answered to a batch of inputs."""
        if self.preprocessor is not None:
            inputs = self.preprocessor(inputs)
        outputs = self.inference_step(inputs)
        return outputs if self.postprocessor is None else self.postprocessor(outputs)

    def get_inference_signatures(self, function_keys: Mapping[str, str]) -> dict[str, Any]:
        """Returns the functions to export as TensorFlow's concrete functions, by the names of their signatures.

        Args:
          function_keys: Names of methods with the names of their signatures.
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
        """Returns the inputs of a function: the given signature, or what the model declares."""
        if self.input_signature is not None:
            return _named(self.input_signature)
        structure = getattr(self.model, "_inputs_struct", None) or getattr(self.model, "inputs", None)
        if self.preprocessor is not None or not structure:
            raise UsageError(
                f"the inputs of {name!r} are not known",
                key="samples",
                remedy=f"pass a batch, samples={{{name!r}: …}}, or ExportModule(…, input_signature=tf.TensorSpec(…))",
            )
        single = isinstance(structure, list) and len(structure) == 1
        return _named(structure[0] if single else structure)


def _named(specs: Any, name: str | None = None) -> Any:
    """Returns `tf.TensorSpec`s for anything with shape and dtype; names that were given, not counted, are kept."""
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
      origin: Where the SavedModel comes from, for its `assets.extra/everstep.json`.

    Returns:
      The directory of the SavedModel.

    Raises:
      UsageError: The request cannot be carried out; nothing is written.
      TrainingError: What was written answers otherwise than the module. Nothing is left of it.
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
        raise UsageError(f"model {module.model.name!r} has no variables yet", key="model", remedy="call it on a batch")
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
    # A method that TensorFlow compiles says itself what it takes.
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
        live = {key: _live_answer(getattr(module, name), calls[key][1], module.model) for name, key in keys.items()}
        for key, (concrete, _) in calls.items():
            archive.add_endpoint(key, _endpoint(concrete))
        archive.write_out(target.temporary, options=options, verbose=False)
        answers = _loaded_answers(target.temporary, calls)
    for key, expected in live.items():
        actual = answers[key]
        if set(expected) != set(actual):
            raise TrainingError(f"the signature {key!r} loads back with {sorted(actual)}, not {sorted(expected)}")
        check_same(module.model, list(expected.values()), [actual[name] for name in expected], f"the signature {key!r}")


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


def _spec_of(sample: Any) -> Any:
    """Returns the input signature that a sample has, with any batch size."""
    return keras.tree.map_structure(_input_spec, sample)


def _input_spec(leaf: Any) -> keras.InputSpec:
    import tensorflow as tf

    array = tf.convert_to_tensor(leaf)
    return keras.InputSpec(shape=(None, *array.shape[1:]), dtype=array.dtype.name)


def _arguments(concrete: Any, sample: Any, name: str) -> tuple:
    """Returns the positional arguments for a concrete function: a sample in its form, or one that is made up.

    Args:
      concrete: The function.
      sample: Its one argument, or, of several, a tuple or a mapping by their names; None for made-up numbers.
      name: The function's name, for messages.

    Raises:
      UsageError: The sample does not fit, or has to be given: a string cannot be made up.
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
                f"{name!r} takes {spec}, which no batch can be made up for",
                key="samples",
                remedy=f"pass a batch to compare on: samples={{{name!r}: …}}",
            )
        return tf.constant(made_up(spec.shape, spec.dtype.name), spec.dtype)

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


def _live_answer(function: Any, args: tuple, model: keras.Model) -> Outputs:
    """Returns the output of a module's function as it is now, run eagerly; the model stays as it was."""
    with unchanged(model.non_trainable_variables), _eagerly():
        return _by_name(function(*args))


def _loaded_answers(directory: Path, calls: Mapping[str, tuple[Any, tuple]]) -> dict[str, Outputs]:
    """Returns the answers of a SavedModel.

    Args:
      directory: The SavedModel.
      calls: For each signature, the concrete function it was written from and the arguments to call it with.
    """
    import tensorflow as tf

    with saved_model.quiet():
        model = tf.saved_model.load(str(directory))
    answers = {}
    for key, (concrete, args) in calls.items():
        names = [spec.name for spec in tf.nest.flatten(concrete.structured_input_signature[0])]
        outputs = model.signatures[key](**dict(zip(names, tf.nest.flatten(args), strict=True)))
        answers[key] = {name: np.asarray(value) for name, value in outputs.items()}
    return answers


def _by_name(outputs: Any) -> Outputs:
    """Returns outputs under the names that a signature gives them."""
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
    """Inside, functions of TensorFlow run line by line: on JAX the model then answers itself, not its conversion."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def write_origin(directory: Path, origin: Mapping[str, Any]) -> None:
    """Writes into a SavedModel where it comes from."""
    (directory / _ORIGIN).parent.mkdir(exist_ok=True)
    storage.write_json(directory / _ORIGIN, origin)


def read_origin(directory: Path) -> dict[str, Any] | None:
    """Returns where a SavedModel comes from; None for a directory that `export` did not write it into."""
    try:
        origin = json.loads((directory / _ORIGIN).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None
