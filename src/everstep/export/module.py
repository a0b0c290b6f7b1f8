"""`ExportModule`: a model with what belongs before and behind it, as it is to be served."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

from everstep.errors import UsageError
from everstep.export.bridge import Bridge


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
        """Returns what a function is given: as told, or as the model declares it."""
        if self.input_signature is not None:
            return _named(self.input_signature)
        structure = getattr(self.model, "_inputs_struct", None) or getattr(self.model, "inputs", None)
        if self.preprocessor is not None or not structure:
            raise UsageError(
                f"export: what {name!r} is given is not known: pass a batch of it, samples={{{name!r}: …}}, or "
                "ExportModule(…, input_signature=tf.TensorSpec(…))"
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
