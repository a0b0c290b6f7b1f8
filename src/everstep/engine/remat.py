"""Rematerialization: layers whose activations are computed again in the backward pass instead of being stored.

Keras's `RematScope` does that for each layer as it is created, but on JAX it fails for layers that take `training` or
assign variables, and on PyTorch and TensorFlow a dropout would draw other numbers the second time. Here a whole layer,
such as the block of a transformer, is recomputed as one unit, from its inputs and from the values that its other state
(seed generators, moving averages) had the first time; what it assigns is assigned once.
"""

import contextvars
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras

from everstep.engine.hub import is_hub_task
from everstep.errors import UsageError
from everstep.task import ChainedScope, keras_masks, set_keras_masks

KEY = "runtime.remat"


def rematerialize(model: keras.Model, wanted: str | Sequence[str] | None) -> list[str]:
    """Makes layers of a model recompute their activations in the backward pass.

    Args:
      model: The model; its layers are changed.
      wanted: `full` for every layer directly in the model, or in the backbone of a KerasHub model, each as one unit. Or
        regular expressions for names of layers at any depth; of a matching layer and those inside it, only the outer
        one counts. None or `none`: none.

    Returns:
      The names of the layers.

    Raises:
      UsageError: No layer matches an expression, or the model has no layers to choose from.
    """
    if not wanted or wanted == "none":
        return []
    patterns = [wanted] if isinstance(wanted, str) else wanted
    chosen = _all_layers(model) if wanted == "full" else _matching(model, patterns)
    for layer in chosen:
        _wrap(layer)
    return [layer.name for layer in chosen]


def _all_layers(model: keras.Model) -> list[keras.Layer]:
    backbone: Any = getattr(model, "backbone", None) if is_hub_task(model) else None  # as one unit it saves nothing
    direct = [layer for one in model.layers for layer in ([one] if one is not backbone else one.layers)]
    found = [layer for layer in dict.fromkeys(direct) if not isinstance(layer, keras.layers.InputLayer)]
    if not found:
        raise UsageError("the model has no layers", key=KEY, received="full")
    return found


def _matching(model: keras.Model, patterns: Sequence[str]) -> list[keras.Layer]:
    inside = list(model._flatten_layers(include_self=False))
    chosen: list[keras.Layer] = []
    for pattern in patterns:
        found = [layer for layer in inside if re.search(pattern, layer.name)]
        if not found:
            names = ", ".join(layer.name for layer in model.layers[:20])
            raise UsageError("no layer matches", key=KEY, received=pattern, remedy=f"the model has {names}")
        chosen += found
    covered = {id(part) for layer in chosen for part in layer._flatten_layers(include_self=False)}
    return [layer for layer in dict.fromkeys(chosen) if id(layer) not in covered]


def _wrap(layer: keras.Layer) -> None:
    """Replaces the calls of a layer; once, although a model may be trained several times."""
    for name in ("call", "quantized_call"):
        call = getattr(layer, name)
        if not hasattr(call, "rematerialized"):
            setattr(layer, name, _rematerialized(layer, call))


def _rematerialized(layer: keras.Layer, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call that stores only its inputs, and is repeated in the backward pass."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves = keras.tree.flatten((args, kwargs))
        is_tensor = [keras.ops.is_tensor(leaf) for leaf in leaves]
        trainable = {id(variable) for variable in layer.trainable_variables}
        state = [variable for variable in layer.variables if id(variable) not in trainable]
        seen: dict[str, Any] = {}  # what is no tensor: the structure of the outputs, the assigned variables, …
        context = contextvars.copy_context()  # the repeated call, perhaps in another thread, is in the same context

        def pure(tensors: list[Any], values: list[Any]) -> list[list[Any]]:
            given = iter(tensors)
            filled = [next(given) if is_one else leaf for leaf, is_one in zip(leaves, is_tensor, strict=True)]
            set_keras_masks(keras_masks(leaves), filled)
            new_args, new_kwargs = keras.tree.pack_sequence_as((args, kwargs), filled)
            with ChainedScope(list(zip(state, values, strict=True))) as scope:
                outputs = context.copy().run(call, *new_args, **new_kwargs)
                masks = keras_masks(outputs)
                assigned = [variable for variable in state if id(variable) in scope.assigned]
                updates = [scope.get_current_value(variable) for variable in assigned]
            seen.update(structure=keras.tree.map_structure(lambda _: None, outputs), assigned=assigned)
            seen["has_mask"] = [mask is not None for mask in masks]
            masks = [mask for mask in masks if mask is not None]
            return [keras.tree.flatten(outputs), masks, list(scope.losses), updates]

        tensors = [leaf for leaf, is_one in zip(leaves, is_tensor, strict=True) if is_one]
        flat, masks, losses, updates = _repeated(pure, tensors, state)
        outputs = keras.tree.pack_sequence_as(seen["structure"], flat)
        found = iter(masks)
        set_keras_masks([next(found) if has_mask else None for has_mask in seen["has_mask"]], outputs)
        for loss in losses:
            keras.Layer.add_loss(layer, loss)  # a model has none of its own
        for variable, value in zip(seen["assigned"], updates, strict=True):
            variable.assign(value)
        return outputs

    wrapped.rematerialized = True  # type: ignore[attr-defined]
    return wrapped


def _repeated(pure: Callable[[list, list], list[list]], tensors: list[Any], state: list[keras.Variable]) -> list[list]:
    """Calls a function of tensors and of the values of the state, and again where gradients need what is inside it."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.checkpoint(pure)(tensors, [variable.value for variable in state])
    if backend == "torch":
        from torch.utils.checkpoint import checkpoint

        values = [variable.value.detach().clone() for variable in state]  # assignments change the tensor itself
        return checkpoint(pure, tensors, values, use_reentrant=False, preserve_rng_state=False)
    return _repeated_by_tensorflow(pure, tensors, state)


def _repeated_by_tensorflow(
    pure: Callable[[list, list], list[list]], tensors: list[Any], state: list[keras.Variable]
) -> list[list]:
    import tensorflow as tf

    lengths: list[int] = []
    values = [tf.identity(variable.value) for variable in state]  # as they are now: assignments follow
    differentiable = [tensor.dtype.is_floating for tensor in tensors]

    def flat(*given: Any) -> list[Any]:
        floating = iter(given)
        inputs = [next(floating) if is_one else one for one, is_one in zip(tensors, differentiable, strict=True)]
        results = pure(inputs, values)
        lengths[:] = [len(part) for part in results]
        return [tf.convert_to_tensor(leaf) for part in results for leaf in part]

    floating = [tensor for tensor, is_one in zip(tensors, differentiable, strict=True) if is_one]
    found = iter(tf.recompute_grad(flat)(*floating))
    return [[next(found) for _ in range(length)] for length in lengths]
