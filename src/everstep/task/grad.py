"""`value_and_grad` and `cond`: the two places where the backends differ inside a user's train step.

Everything else in a step is plain stateful Keras. On TensorFlow that code is recorded by a tape, on PyTorch by
autograd. On JAX it runs inside a `keras.StatelessScope`, and its assignments are passed to the enclosing scope of the
engine or, outside an engine, to the variables themselves. Both functions therefore work in a compiled step, in a
notebook cell and inside each other.

For Everstep's own tasks and engines there are, in this order:

- `switch` and `scan`: `cond` for several functions, and a loop over slices of arrays;
- `ChainedScope`: Keras's stateless scope that reads through to the enclosing one, on which JAX's parts rest;
- `gradients_skipped`: for a trace that only looks at what a step creates and logs;
- `Share`, `on_replica`: what part of a step a replica has, and how gradients are summed over the replicas;
- `adapt_loss_scaling`, `mark_scaled`: losses scaled for float16, here because `value_and_grad` scales the loss;
  `task/optim/loss_scale.py` wraps the optimizers that hold the scale.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras

from everstep.errors import UsageError, kind_of
from everstep.keras_internals import get_keras_mask, set_keras_mask


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
      loss_fn: Takes no arguments; returns the scalar loss, or a tuple `(loss, anything)`. A loss may have shape `[1]`.
      variables: The variables to differentiate by. If the loss does not depend on one, its gradient is zeros.
      optimizer: The optimizer that will apply the gradients; required if it scales the loss (float16). The gradients
        are then of the scaled loss, as its `apply` expects; the returned loss is not scaled.

    Returns:
      The result of `loss_fn`, and the list of dense gradients in the order of `variables`. On several replicas they are
      those of the whole batch, so that clipping and logging give the same results as on one device.

    Raises:
      UsageError: `loss_fn` is no function.
    """
    if not callable(loss_fn):
        raise UsageError(
            f"expected a function, not {kind_of(loss_fn)}",
            key="loss_fn",
            remedy="everstep.value_and_grad(loss_fn, model.trainable_variables)",
        )
    backend = keras.backend.backend()
    if backend not in _VALUE_AND_GRAD:
        raise UsageError(
            f"everstep.value_and_grad does not know the backend {backend!r}", remedy="use tensorflow, jax or torch"
        )
    variables = list(variables)
    value, gradients = _VALUE_AND_GRAD[backend](loss_fn, variables, optimizer)
    mark_scaled(optimizer)
    return value, gradients


def define_gradients(backend: str, function: Callable[[Callable[[], Any], list, Any], tuple[Any, list]]) -> None:
    """Defines `value_and_grad` on a backend of Keras that Everstep does not know.

    Args:
      backend: The name of the backend.
      function: Takes the arguments of `value_and_grad`, all by position, and returns what it returns.
    """
    _VALUE_AND_GRAD[backend] = function


def cond(predicate: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Runs one of two functions, selected by a value known only at run time; both may assign variables.

    Example: every second step trains the critic.
        everstep.cond(step % 2 == 0, train_critic, train_generator)

    Args:
      predicate: A scalar boolean tensor.
      true_fn: Runs if the predicate is true; takes no arguments.
      false_fn: Runs if it is false; returns the same structure, shapes and dtypes as `true_fn`.

    Returns:
      The result of the selected function.

    Raises:
      UsageError: The functions do not return the same structure and types.
    """
    run = _jax_cond if keras.backend.backend() == "jax" else keras.ops.cond
    return _same_structure("everstep.cond", run, predicate, true_fn, false_fn)


def switch(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    """Runs one of several functions, selected by a number known only at run time; all may assign variables.

    Args:
      index: A scalar integer tensor, from 0 to below the number of functions.
      branches: Functions without arguments that return the same structure, shapes and dtypes.

    Returns:
      The result of the selected function.

    Raises:
      UsageError: The functions do not return the same structure and types.
    """
    run = _jax_switch if keras.backend.backend() == "jax" else keras.ops.switch
    return _same_structure("everstep.task.grad.switch", run, index, list(branches))


def quick_if_finite(quick: Callable[[], list[Any]], exact: Callable[[], list[Any]]) -> list[Any]:
    """Returns `quick()` if its first value is finite, else `exact()`; not where a step would wait for the decision.

    On JAX it is made while a compiled step runs. Elsewhere the host would wait for the value: always `exact()` there.

    Args:
      quick: Computes some arrays, of which the first is a scalar.
      exact: Computes arrays of the same shapes and types.
    """
    if keras.backend.backend() != "jax":
        return exact()
    found = quick()
    return keras.ops.cond(keras.ops.isfinite(found[0]), lambda: found, exact)


def scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: list[Any], xs: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Runs a step on each slice of arrays along their first axis, one after the other; not differentiable everywhere.

    On TensorFlow, the scan of Keras supports only outputs of the shapes of the carried values.

    Args:
      step: Takes the carried values and a slice; returns the new carried values, and one array.
      carry: The initial carried values.
      xs: Arrays whose first axes have the same static length.

    Returns:
      The last carried values, and the stacked arrays.
    """
    run = _tensorflow_scan if keras.backend.backend() == "tensorflow" else keras.ops.scan
    return run(step, carry, xs)


def _same_structure(name: str, run: Callable[..., Any], *args: Any) -> Any:
    try:
        return run(*args)
    except (AssertionError, TypeError) as error:  # raised by the backends if the functions differ
        raise UsageError(f"all functions must return the same structure and types: {error}", key=name) from error


class ChainedScope(keras.StatelessScope):
    """A `StatelessScope` that reads through to the enclosing scope and remembers which variables were assigned.

    Keras's own scopes hide the outer one: a nested scope would show the values from before the step.
    """

    def __init__(self, state_mapping: Sequence[tuple[keras.Variable, Any]] = ()) -> None:
        super().__init__(state_mapping=list(state_mapping), collect_losses=True)
        self.assigned: dict[int, keras.Variable] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value in this scope, else in enclosing ones, else of the variable (None before it has one)."""
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return variable._value if value is None else value

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records an assignment."""
        self.assigned[id(update[0])] = update[0]
        super().add_update(update)


class Share(Protocol):
    """The share of one of several replicas in a step, and how gradients are summed over the replicas.

    Attributes:
      divides_losses: Whether Keras's losses are weighted when they are computed, as in Keras, instead of later.
      samples: The samples of the whole batch.
    """

    divides_losses: bool
    samples: int

    @property
    def weight(self) -> Any:
        """The part of the global batch that this replica works on: a number, or a scalar tensor."""

    def weigh(self, own: Any) -> Any:
        """Makes this replica count by a weight instead of its samples; returns that of the whole batch."""

    def sum(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """Returns the gradients summed over all replicas."""


def shared(value: Any, share: Share) -> Any:
    """Returns a loss, or a gradient, multiplied by the part of the batch that it is of."""
    weight = share.weight
    return value * (weight if isinstance(weight, float) else keras.ops.cast(weight, value.dtype))


_replica = threading.local()
_recording = threading.local()
_skipping = threading.local()


@contextlib.contextmanager
def gradients_skipped() -> Iterator[None]:
    """Makes `value_and_grad` return zeros as gradients, without deriving them, for a trace that is thrown away.

    What a step creates, uses and logs does not depend on them, and to derive them takes most of a trace's time.
    PyTorch, which traces nothing, and replicas on TensorFlow derive them all the same.
    """
    before = getattr(_skipping, "now", False)
    _skipping.now = True
    try:
        yield
    finally:
        _skipping.now = before


@contextlib.contextmanager
def on_replica(share: Share | None) -> Iterator[None]:
    """Sets the share of this thread inside the block; None for code that is not aware of replicas."""
    before = current_share()
    _replica.share = share
    try:
        yield
    finally:
        _replica.share = before


def current_share() -> Share | None:
    """Returns the share of the replica of this thread; None on one device."""
    return getattr(_replica, "share", None)


@contextlib.contextmanager
def losses_divided_by_keras(divided: bool = True) -> Iterator[None]:
    """Makes Keras's losses shares of the loss of the global batch, as a model's own `train_step` expects.

    Outside this block a loss object returns the mean over the samples of the replica, and `value_and_grad` weights it.
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


class _ScaledLosses(threading.local):
    """What the step of this thread has done about the scale of its loss since `forget_scaled`; ids of optimizers."""

    def __init__(self) -> None:
        self.scaled: set[int] = set()
        """Those for which a loss was scaled: a loss-scaling `apply` checks it."""
        self.unscaled: set[int] = set()
        """Those whose gradients the step itself has unscaled, as Model Garden's steps do."""


_losses = _ScaledLosses()


def mark_scaled(optimizer: Any) -> None:
    """Records that a loss was scaled for this optimizer, and for those it wraps."""
    while optimizer is not None:
        _losses.scaled.add(id(optimizer))
        optimizer = getattr(optimizer, "inner_optimizer", None)


def forget_scaled() -> None:
    """Clears the records of scaled losses; called by an engine before it traces a step."""
    _losses.scaled.clear()
    _losses.unscaled.clear()


def adapt_loss_scaling(optimizer: Any) -> None:
    """Makes a `LossScaleOptimizer`'s `apply` work in a compiled step and refuse gradients that were not scaled.

    Keras applies gradients under `ops.cond`, whose branches must not assign on JAX: there, `stateless_apply` and plain
    assignments are used instead. Gradients of an unscaled loss are an error here: on TensorFlow they would not train
    the model, on JAX fail with an obscure message. For steps that were written for Keras 2, `get_scaled_loss` and
    `get_unscaled_gradients` are added.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):  # an averaging optimizer may wrap it
        adapt_loss_scaling(getattr(optimizer, "inner_optimizer", None))
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or "apply" in vars(optimizer):
        return
    keras_apply, keras_scale_loss = optimizer.apply, optimizer.scale_loss

    def scale_loss(loss: Any) -> Any:
        mark_scaled(optimizer)  # a step with its own tape calls this
        return keras_scale_loss(loss)

    def apply(grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        if id(optimizer) not in _losses.scaled:
            raise UsageError(
                f"optimizer {optimizer.name!r} scales the loss, but these gradients are of an unscaled one",
                remedy="call everstep.value_and_grad(loss_fn, variables, optimizer=optimizer), or, with your own tape, "
                "take the gradients of optimizer.scale_loss(loss)",
            )
        # Scaled again, without rounding: `apply` divides by the scale, a power of two.
        if id(optimizer) in _losses.unscaled:
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
        _losses.unscaled.add(id(optimizer))
        return [None if grad is None else keras.ops.divide(grad, _scale_of(optimizer, grad)) for grad in grads]

    for method in (apply, scale_loss, get_scaled_loss, get_unscaled_gradients):
        object.__setattr__(optimizer, method.__name__, method)


def _scale_of(optimizer: keras.optimizers.LossScaleOptimizer, grad: Any) -> Any:
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return keras.ops.cast(scale, grad.dtype)


def as_scalar(loss: Any) -> Any:
    """Returns a loss of shape `[1]`, such as a sum over a list gives, without its axis; other values unchanged."""
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
    if getattr(_skipping, "now", False) and share is None:
        loss, value = _split(loss_fn())
        if _scale(loss, optimizer).shape.rank == 0:
            return value, [tf.zeros_like(variable.value) for variable in variables]

    with tf.GradientTape() as tape, losses_divided_by_keras(False):
        loss, value = _split(loss_fn())
        scaled = shared(_scale(loss, optimizer), share) if share else _scale(loss, optimizer) * 1.0
    sources, unconnected = [v.value for v in variables], tf.UnconnectedGradients.ZERO
    # The gradient of an embedding consists of slices, one per token. Keras's optimizers would square each slice of a
    # repeated token, while the gradient is the sum of the slices.
    dense = [tf.convert_to_tensor(part) for part in tape.gradient(scaled, sources, unconnected_gradients=unconnected)]
    return value, share.sum(dense, variables) if share else dense


def _jax_value_and_grad(loss_fn: Callable[[], Any], variables: list, optimizer: Any) -> tuple[Any, list]:
    import jax

    if getattr(_skipping, "now", False):
        loss, value = _split(loss_fn())
        if jax.numpy.shape(_scale(loss, optimizer)) == ():
            return value, [jax.numpy.zeros_like(v.value) for v in variables]

    assigned: list[keras.Variable] = []

    def pure(values: list) -> tuple[Any, tuple[Any, list, list]]:
        with ChainedScope(list(zip(variables, values, strict=True))) as scope:
            loss, value = _split(loss_fn())
            scaled = _scale(loss, optimizer)
            assigned[:] = list(scope.assigned.values())
            updates = [scope.get_current_value(v) for v in assigned]
        return scaled, (value, keras_masks(value), updates)

    (_, (value, masks, updates)), gradients = jax.value_and_grad(pure, has_aux=True)([v.value for v in variables])
    for variable, update in zip(assigned, updates, strict=True):
        variable.assign(update)
    set_keras_masks(masks, value)
    return value, gradients


def _torch_value_and_grad(loss_fn: Callable[[], Any], variables: list, optimizer: Any) -> tuple[Any, list]:
    import torch

    share = current_share()
    inside = getattr(_recording, "inside", False)  # the loss of another call, which differentiates this result
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
        scaled = shared(scaled, share) if share else scaled
        with _explain_assigned():
            gradients = list(torch.autograd.grad(scaled, sources, **options))
        gradients = share.sum(gradients, variables) if share else gradients
    # Results are detached: recording what is done with them would keep the memory of the step.
    return (value, gradients) if inside else (_detached(value), gradients)


@contextlib.contextmanager
def _explain_assigned() -> Iterator[None]:
    """Explains PyTorch's error about a tensor that was changed before its gradient was computed.

    Raises:
      UsageError: A variable was assigned too early.
    """
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise UsageError(
            "a variable was assigned after the forward pass had used its value, and before its gradient was computed; "
            "a layer such as GRU(stateful=True) does that, which PyTorch cannot differentiate",
            remedy="use the state as an input and an output of the model, or train on JAX or TensorFlow",
        ) from error


@contextlib.contextmanager
def _differentiable(sources: Sequence[Any]) -> Iterator[None]:
    """Makes all tensors differentiable inside the block, also those of non-trainable variables."""
    frozen = [source for source in sources if not source.requires_grad]
    try:
        for source in frozen:
            source.requires_grad_(True)
        yield
    finally:
        for source in frozen:
            source.requires_grad_(False)


def _detached(value: Any) -> Any:
    """Returns a nesting of tensors detached from the graph, with their masks."""
    if type(value) in (tuple, list):  # without Keras's functions over nestings, which take as long as a small layer
        return type(value)([_detached(part) for part in value])
    if hasattr(value, "detach"):
        free = value.detach()
        if (mask := get_keras_mask(value)) is not None:
            set_keras_mask(free, mask)
        return free
    free = keras.tree.map_structure(lambda leaf: leaf.detach() if hasattr(leaf, "detach") else leaf, value)
    set_keras_masks(keras_masks(value), free)
    return free


def keras_masks(value: Any) -> list[Any]:
    """Returns the masks that Keras has set on tensors, for the metrics; None for those without."""
    return [get_keras_mask(leaf) for leaf in keras.tree.flatten(value)]


def set_keras_masks(masks: Sequence[Any], value: Any) -> None:
    """Sets masks on tensors that were derived from masked ones."""
    for mask, leaf in zip(masks, keras.tree.flatten(value), strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)


def _current(variable: keras.Variable, scope: "ChainedScope") -> Any:
    """Returns the value of a variable in a scope; its initial one if it was created in the other branch."""
    value = scope.get_current_value(variable)
    return variable.value if value is None else value


def _jax_cond(predicate: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    return _jax_switch(keras.ops.cast(predicate, "int32"), [false_fn, true_fn])


def _jax_switch(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    import jax

    touched: dict[int, keras.Variable] = {}
    for branch in branches:  # all must return what any of them assigns

        def record(branch: Callable[[], Any] = branch) -> None:
            with ChainedScope() as scope:
                branch()
                touched.update(scope.assigned)

        jax.eval_shape(record)
    assigned = list(touched.values())

    def run(branch: Callable[[], Any]) -> tuple[Any, list]:
        with ChainedScope() as scope:
            value = branch()
            return value, [_current(v, scope) for v in assigned]

    value, updates = jax.lax.switch(index, [functools.partial(run, branch) for branch in branches])
    for variable, update in zip(assigned, updates, strict=True):
        variable.assign(update)
    return value


def _tensorflow_scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: list, xs: tuple) -> tuple[list, Any]:
    import tensorflow as tf

    def body(index: Any, carry: list, outputs: Any) -> tuple[Any, list, Any]:
        carry, output = step(carry, tuple(tf.gather(each, index) for each in xs))
        return index + 1, carry, outputs.write(index, output)

    length = int(xs[0].shape[0])
    carry, first = step(carry, tuple(each[0] for each in xs))  # which has the shape and type of all outputs
    outputs = tf.TensorArray(first.dtype, length, element_shape=first.shape).write(0, first)
    arguments = (tf.constant(1), carry, outputs)
    _, carry, outputs = tf.while_loop(lambda index, *_: index < length, body, arguments, parallel_iterations=1)
    return carry, outputs.stack()


_VALUE_AND_GRAD: dict[str, Callable[..., tuple[Any, list]]] = {
    "tensorflow": _tensorflow_value_and_grad,
    "jax": _jax_value_and_grad,
    "torch": _torch_value_and_grad,
}
