"""`value_and_grad` and `cond`: the two places where the backends differ inside a train step.

Everything else in a step is plain stateful Keras. On TensorFlow that code is recorded by a tape, on PyTorch by
autograd; on JAX it runs inside a `keras.StatelessScope`, and what it assigns is handed to the scope around it — the
engine's, or, outside an engine, to the variables themselves. Both functions therefore work in a compiled step, in a
notebook cell and in each other.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from everstep.errors import UsageError


def value_and_grad(
    loss_fn: Callable[[], Any], variables: Sequence[keras.Variable], *, optimizer: Any = None
) -> tuple[Any, list[Any]]:
    """Evaluates `loss_fn` and the gradients of its loss.

    Example:
        def loss_fn():
            y_pred = model(x, training=True)
            return self.build_losses(y, y_pred, aux_losses=model.losses), y_pred

        (loss, y_pred), grads = everstep.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)

    Args:
      loss_fn: Takes nothing; returns the scalar loss, or a tuple `(loss, anything)`; one of shape `[1]` is a scalar.
      variables: What to differentiate by. A variable the loss does not depend on gets zeros on every backend.
      optimizer: The optimizer that will apply the gradients. One that scales the loss (float16) needs it here:
        the gradients are then of the scaled loss, as its `apply` expects; the loss returned is not scaled.

    Returns:
      What `loss_fn` returned, and the list of gradients, dense, in the order of `variables`. On several replicas they
      are of the whole batch, as on one device: what is clipped or logged of them is the same.
    """
    backend = keras.backend.backend()
    if backend not in _VALUE_AND_GRAD:
        raise UsageError(
            f"everstep.value_and_grad does not know the backend {backend!r}", remedy="use tensorflow, jax or torch"
        )
    variables = list(variables)
    value, gradients = _VALUE_AND_GRAD[backend](loss_fn, variables, optimizer)
    mark_scaled(optimizer)
    return value, gradients


def cond(predicate: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Runs one of two functions, chosen by a value known only at run time; both may assign variables.

    Example: every second step trains the critic.
        everstep.cond(step % 2 == 0, train_critic, train_generator)

    Args:
      predicate: A scalar boolean tensor.
      true_fn: Runs if it is true; takes nothing.
      false_fn: Runs if it is not; returns the same structure, shapes and dtypes as `true_fn`.

    Returns:
      What the chosen function returned.

    Raises:
      UsageError: The functions do not return the same structure and types.
    """
    run = _jax_cond if keras.backend.backend() == "jax" else keras.ops.cond
    return _same_structure("everstep.cond", run, predicate, true_fn, false_fn)


def switch(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    """Runs one of several functions, chosen by a number known only at run time; all may assign variables.

    Args:
      index: A scalar integer tensor, from 0 to below the number of functions.
      branches: Functions that take nothing and return the same structure, shapes and dtypes.

    Returns:
      What the chosen function returned.

    Raises:
      UsageError: The functions do not return the same structure and types.
    """
    run = _jax_switch if keras.backend.backend() == "jax" else keras.ops.switch
    return _same_structure("everstep.task.grad.switch", run, index, list(branches))


def _same_structure(name: str, run: Callable[..., Any], *args: Any) -> Any:
    try:
        return run(*args)
    except (AssertionError, TypeError) as error:  # what the backends raise where the functions differ
        raise UsageError(f"all functions must return the same structure and types: {error}", key=name) from error


class ChainedScope(keras.StatelessScope):
    """A `StatelessScope` that reads through to the scope around it and remembers which variables it assigned.

    Keras's own scopes hide the outer one: a nested scope would show the values from before the step.
    """

    def __init__(self, state_mapping: Sequence[tuple[keras.Variable, Any]] = ()) -> None:
        super().__init__(state_mapping=list(state_mapping), collect_losses=True)
        self.assigned: dict[int, keras.Variable] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value here, else in the scopes around, else the variable's own (None before it has one)."""
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return variable._value if value is None else value

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records an assignment."""
        self.assigned[id(update[0])] = update[0]
        super().add_update(update)


class Share(Protocol):
    """What one of several replicas has to know of a step: its part, and how the parts come together.

    Attributes:
      divides_losses: Whether Keras's losses are weighed as they are computed, which is Keras's rule, and not later.
    """

    divides_losses: bool

    @property
    def weight(self) -> float:
        """The part of the global batch that this replica works on."""

    def sum(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """Returns the gradients of all replicas, added up."""


_replica = threading.local()
_recording = threading.local()


@contextlib.contextmanager
def on_replica(share: Share | None) -> Iterator[None]:
    """Inside the block this thread's share is that one; None for code that need not know of replicas."""
    before = current_share()
    _replica.share = share
    try:
        yield
    finally:
        _replica.share = before


def current_share() -> Share | None:
    """Returns what this thread's replica has to do; None where there is one device."""
    return getattr(_replica, "share", None)


@contextlib.contextmanager
def losses_divided_by_keras(divided: bool = True) -> Iterator[None]:
    """For steps written by Keras's rules, as a model's own `train_step`: its losses are parts of the global batch's.

    Elsewhere a loss object returns the mean over the replica's samples, and `value_and_grad` weighs it.
    """
    share = current_share()
    if share is None:
        yield
        return
    before, share.divides_losses = share.divides_losses, divided
    try:
        yield
    finally:
        share.divides_losses = before


# Optimizers that had a loss scaled for them since `forget_scaled`: a loss-scaling `apply` checks it.
_scaled: set[int] = set()
# Those whose gradients the step has scaled back itself since then, as Model Garden's steps do.
_unscaled: set[int] = set()


def mark_scaled(optimizer: Any) -> None:
    """Notes that a loss was scaled for this optimizer, and for those it wraps."""
    while optimizer is not None:
        _scaled.add(id(optimizer))
        optimizer = getattr(optimizer, "inner_optimizer", None)


def forget_scaled() -> None:
    """Called by an engine before it traces a step."""
    _scaled.clear()
    _unscaled.clear()


def adapt_loss_scaling(optimizer: Any) -> None:
    """Makes a `LossScaleOptimizer`'s `apply` work in a compiled step and refuse gradients that were not scaled.

    Keras applies it under `ops.cond`, whose branches may not assign on JAX: there it becomes `stateless_apply`
    and plain assignments. Unscaled gradients do not learn on TensorFlow and fail obscurely on JAX: an error here.
    Steps that were written for Keras 2 find its `get_scaled_loss` and `get_unscaled_gradients`.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):  # one that averages may be around it
        adapt_loss_scaling(getattr(optimizer, "inner_optimizer", None))
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or "apply" in vars(optimizer):
        return
    keras_apply, keras_scale_loss = optimizer.apply, optimizer.scale_loss

    def scale_loss(loss: Any) -> Any:
        mark_scaled(optimizer)  # a step that records gradients by itself scales the loss by itself
        return keras_scale_loss(loss)

    def apply(grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        if id(optimizer) not in _scaled:
            raise UsageError(
                f"optimizer {optimizer.name!r} scales the loss, but these gradients are of an unscaled one",
                remedy="call everstep.value_and_grad(loss_fn, variables, optimizer=optimizer), or, around a tape of "
                "your own, take the gradients of optimizer.scale_loss(loss)",
            )
        if id(optimizer) in _unscaled:  # scaled again, exactly: a scale is a power of two, and `apply` divides by it
            grads = [None if grad is None else keras.ops.multiply(grad, _scale_of(optimizer, grad)) for grad in grads]
        if keras.backend.backend() != "jax":
            keras_apply(grads, trainable_variables)
            return
        known = optimizer._trainable_variables
        variables = list(trainable_variables) if trainable_variables is not None else list(known)
        if not optimizer.built:
            optimizer.build(variables)
        held = optimizer.variables
        new, slots = optimizer.stateless_apply([v.value for v in held], list(grads), [v.value for v in variables])
        for variable, value in zip([*variables, *held], [*new, *slots], strict=True):
            variable.assign(value)

    def get_scaled_loss(loss: Any) -> Any:
        return optimizer.scale_loss(loss)

    def get_unscaled_gradients(grads: Sequence[Any]) -> list[Any]:
        _unscaled.add(id(optimizer))
        return [None if grad is None else keras.ops.divide(grad, _scale_of(optimizer, grad)) for grad in grads]

    for method in (apply, scale_loss, get_scaled_loss, get_unscaled_gradients):
        object.__setattr__(optimizer, method.__name__, method)


def _scale_of(optimizer: keras.optimizers.LossScaleOptimizer, grad: Any) -> Any:
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return keras.ops.cast(scale, grad.dtype)


def as_scalar(loss: Any) -> Any:
    """Returns a loss of shape `[1]`, as a sum over a list makes it, without its axis; anything else as it is."""
    return keras.ops.reshape(loss, ()) if tuple(getattr(loss, "shape", ())) == (1,) else loss


def _split(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, tuple):
        loss = as_scalar(value)
        return loss, loss
    loss = as_scalar(value[0])
    return loss, (loss, *value[1:])


def _scale(loss: Any, optimizer: Any) -> Any:
    return loss if optimizer is None else optimizer.scale_loss(loss)


def _tensorflow_value_and_grad(loss_fn: Callable[[], Any], variables: list, optimizer: Any) -> tuple[Any, list]:
    import tensorflow as tf

    share = current_share()
    with tf.GradientTape() as tape, losses_divided_by_keras(False):
        loss, value = _split(loss_fn())
        scaled = _scale(loss, optimizer) * (share.weight if share else 1.0)
    sources, unconnected = [v.value for v in variables], tf.UnconnectedGradients.ZERO
    # An embedding's gradient comes as slices, one per token. Keras's optimizers would square the slices of a repeated
    # token one by one, where the gradient is their sum.
    dense = [tf.convert_to_tensor(part) for part in tape.gradient(scaled, sources, unconnected_gradients=unconnected)]
    return value, share.sum(dense, variables) if share else dense


def _jax_value_and_grad(loss_fn: Callable[[], Any], variables: list, optimizer: Any) -> tuple[Any, list]:
    import jax

    assigned: list[keras.Variable] = []

    def pure(values: list) -> tuple[Any, tuple[Any, list, list]]:
        with ChainedScope(list(zip(variables, values, strict=True))) as scope:
            loss, value = _split(loss_fn())
            scaled = _scale(loss, optimizer)
            assigned[:] = list(scope.assigned.values())
            updates = [scope.get_current_value(v) for v in assigned]
        return scaled, (value, _masks(value), updates)

    (_, (value, masks, updates)), gradients = jax.value_and_grad(pure, has_aux=True)([v.value for v in variables])
    for variable, update in zip(assigned, updates, strict=True):
        variable.assign(update)
    _put_on(masks, value)
    return value, gradients


def _torch_value_and_grad(loss_fn: Callable[[], Any], variables: list, optimizer: Any) -> tuple[Any, list]:
    import torch

    inside = getattr(_recording, "inside", False)  # of the loss of another one, which differentiates this one's result
    sources = [v.value for v in variables]
    with torch.enable_grad(), _differentiable(sources):
        _recording.inside = True
        try:
            loss, value = _split(loss_fn())
        finally:
            _recording.inside = inside
        scaled = _scale(loss, optimizer)
        if not sources or not isinstance(scaled, torch.Tensor) or not scaled.requires_grad:
            return value, [torch.zeros_like(source) for source in sources]
        options = {"create_graph": inside, "allow_unused": True, "materialize_grads": True}
        gradients = list(torch.autograd.grad(scaled, sources, **options))
    # What is done with the results is not recorded: it would keep the step's memory.
    return (value, gradients) if inside else (_detached(value), gradients)


@contextlib.contextmanager
def _differentiable(sources: Sequence[Any]) -> Iterator[None]:
    """Inside the block each tensor can be differentiated by, also that of a variable that is not trained."""
    frozen = [source for source in sources if not source.requires_grad]
    try:
        for source in frozen:
            source.requires_grad_(True)
        yield
    finally:
        for source in frozen:
            source.requires_grad_(False)


def _detached(value: Any) -> Any:
    """Returns tensors that are not recorded."""
    free = keras.tree.map_structure(lambda leaf: leaf.detach() if hasattr(leaf, "detach") else leaf, value)
    _put_on(_masks(value), free)
    return free


def _masks(value: Any) -> list[Any]:
    """Returns the masks that Keras has put on tensors, for the metrics; None where there is none."""
    return [get_keras_mask(leaf) for leaf in keras.tree.flatten(value)]


def _put_on(masks: Sequence[Any], value: Any) -> None:
    """Gives masks to tensors that were made of those that had them."""
    for mask, leaf in zip(masks, keras.tree.flatten(value), strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)


def _current(variable: keras.Variable, scope: "ChainedScope") -> Any:
    """Returns a variable's value in a scope; its initial one where it was created in the other branch."""
    value = scope.get_current_value(variable)
    return variable.value if value is None else value


def _jax_cond(predicate: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    return _jax_switch(keras.ops.cast(predicate, "int32"), [false_fn, true_fn])


def _jax_switch(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    import jax

    touched: dict[int, keras.Variable] = {}
    for branch in branches:  # what one assigns, all must return

        def look(branch: Callable[[], Any] = branch) -> None:
            with ChainedScope() as scope:
                branch()
                touched.update(scope.assigned)

        jax.eval_shape(look)
    assigned = list(touched.values())

    def run(branch: Callable[[], Any]) -> tuple[Any, list]:
        with ChainedScope() as scope:
            value = branch()
            return value, [_current(v, scope) for v in assigned]

    value, updates = jax.lax.switch(index, [functools.partial(run, branch) for branch in branches])
    for variable, update in zip(assigned, updates, strict=True):
        variable.assign(update)
    return value


_VALUE_AND_GRAD = {
    "tensorflow": _tensorflow_value_and_grad,
    "jax": _jax_value_and_grad,
    "torch": _torch_value_and_grad,
}
