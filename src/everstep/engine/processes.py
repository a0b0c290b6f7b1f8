"""One step on several processes, each with a slice of the global batch and one device, on TensorFlow and PyTorch.

`Processes` has the few operations that the processes compute together; all call them in the same order. A step needs
two: the gradients are summed (`ProcessShare`), and what the step has changed beside the weights is merged in one buffer
(`Merger`). Both add in a fixed order, so the bits are the same on every process and in every run of as many processes.
On JAX nothing of this is needed: there the compiler divides one program.
"""

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.data import Block, OwnRows, RaggedArray, SparseArray
from everstep.engine.merging import Rule, joining_metrics, own_weights, refuse_states_of_samples, rules
from everstep.engine.shares import Share
from everstep.engine.steps import Steps
from everstep.engine.workers import Workers
from everstep.task import current_share, on_replica, shared
from everstep.types import Batch

_IN_PARTS = (SparseArray, RaggedArray)  # tensors that consist of several arrays, and are divided in the step
_GOLDEN = 0x9E3779B9  # between the seeds of two processes; seeds of one process are consecutive


class Processes(abc.ABC):
    """What the processes of a run compute together; one implementation per backend.

    Args:
      rank: The number of this process.
      size: The number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @abc.abstractmethod
    def sum(self, tensors: list[Any]) -> list[Any]:
        """Returns the sums over all processes, which can be differentiated if the tensors can."""

    @abc.abstractmethod
    def first(self, tensors: list[Any]) -> list[Any]:
        """Returns the tensors of the first process."""

    @abc.abstractmethod
    def gather(self, tensor: Any) -> list[Any]:
        """Returns the tensor of each process; they have the same shape."""

    @abc.abstractmethod
    def join(self, tensor: Any) -> Any:
        """Returns the tensors of all processes, one after the other; they may differ in length."""

    def dense(self, gradient: Any) -> Any:
        """Returns a gradient as one tensor."""
        return gradient

    def rows(self, tensor: Any, part: slice) -> Any:
        """Returns some rows of a tensor, which may be sparse or ragged."""
        return tensor[part]

    @abc.abstractmethod
    def own_draws(self) -> contextlib.AbstractContextManager[None]:
        """Makes random layers draw other numbers in each process inside the block."""


class ProcessShare(Share):
    """The share of this process in one step: its slice of the batch.

    If there are fewer samples than processes, all compute the whole batch, and what the first one computes counts.

    Args:
      processes: The processes that share the step.
      lengths: How many samples the arrays of the batch have; those of several tasks may differ.
    """

    def __init__(self, processes: Processes, lengths: Sequence[int]) -> None:
        self.processes = processes
        self.is_divided = min(lengths) >= processes.size  # `slice` needs it
        self.rows = [lengths[0], *[0] * (processes.size - 1)]
        if self.is_divided:
            self.rows = [_size(self.slice(lengths[0], rank)) for rank in range(processes.size)]
        counts = self.rows[processes.rank] > 0
        parts = {(_size(self.slice(length)) if counts else 0, length) for length in lengths}
        super().__init__(parts, lengths[0], counts, self.is_divided)

    def slice(self, length: int, rank: int | None = None) -> slice:
        """Returns which of so many samples a process computes, by default this one."""
        rank, size = self.processes.rank if rank is None else rank, self.processes.size
        return slice(length * rank // size, length * (rank + 1) // size) if self.is_divided else slice(0, length)

    @property
    def weights(self) -> list[float]:
        """The part of the samples of each process."""
        return [rows / sum(self.rows) for rows in self.rows]

    def join(self, value: Any) -> Any:
        """Returns the value for the whole batch of one that has a part for each sample; of a scalar, the mean."""
        if not keras.ops.is_tensor(value) and not isinstance(value, np.ndarray):
            return value
        tensor = ops.convert_to_tensor(value)
        if not self.is_divided:
            return self.processes.first([tensor])[0]
        if len(tensor.shape):
            return self.processes.join(tensor)
        scalars = self.processes.gather(ops.cast(ops.reshape(tensor, (1,)), "float64"))
        whole = sum(weight * scalar[0] for weight, scalar in zip(self.weights, scalars, strict=True))
        return ops.cast(whole, tensor.dtype)

    def output(self, value: Any) -> tuple[Any, ...]:
        """Returns an output of a step for the whole batch: an array joined, a scalar once per slice."""
        tensor = ops.convert_to_tensor(value)
        if not self.is_divided or len(tensor.shape):
            return (self.join(tensor),)
        return tuple(scalar[0] for scalar in self.processes.gather(ops.reshape(tensor, (1,))))

    def _sum(self, gradients: list[Any]) -> list[Any]:
        return self.processes.sum(gradients if self.counts else [ops.zeros_like(part) for part in gradients])

    def _sum_own(self, gradients: list[Any]) -> list[Any]:
        return self._sum([shared(self.processes.dense(gradient), self) for gradient in gradients])

    def _make_alike(self, gradients: list[Any]) -> list[Any]:
        return self.processes.first([self.processes.dense(gradient) for gradient in gradients])


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def process_share() -> ProcessShare | None:
    """Returns the share of this process in the step that runs; None if it computes the batch alone."""
    share = current_share()
    return share if isinstance(share, ProcessShare) else None


def seed_offset() -> int:
    """Returns what to add to a seed, so that random layers draw other numbers in each process for its samples.

    The states of their seed generators stay the same on all processes.
    """
    share = process_share()
    return 0 if share is None else share.processes.rank * _GOLDEN % 2**31


def sum_when_applied(optimizer: Any) -> None:
    """Makes an optimizer sum those gradients that the step did not get from `everstep.value_and_grad`."""
    apply = getattr(optimizer.apply, "unsummed", optimizer.apply)

    def of_sums(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        share = process_share()
        if share is not None and len(grads):
            known = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
            grads = share.ready(list(grads), known)
        with on_replica(None):  # random numbers of an optimizer are the same on every process
            return apply(grads, trainable_variables)

    of_sums.unsummed = apply  # type: ignore[attr-defined]
    object.__setattr__(optimizer, "apply", of_sums)


def update_with_all(metric: keras.Metric) -> None:
    """Makes a metric's `update_state` get the arguments of all processes, joined."""
    update = getattr(metric.update_state, "of_own_part", metric.update_state)

    def update_state(*args: Any, **kwargs: Any) -> Any:
        share = process_share()
        if share is not None:
            args, kwargs = keras.tree.map_structure(share.join, (args, kwargs))
        return update(*args, **kwargs)

    update_state.of_own_part = update  # type: ignore[attr-defined]
    object.__setattr__(metric, "update_state", update_state)


# -- what a step changes beside the weights ---------------------------------------------------------------------------


class Merger:
    """Merges variables after a step: all values travel in one buffer of float64, and are merged in order of rank.

    Args:
      processes: The processes that share the steps.
      merged: The variables, and how each is merged.
    """

    def __init__(self, processes: Processes, merged: Sequence[tuple[keras.Variable, Rule]]) -> None:
        self._processes = processes
        self._variables = {rule: [v for v, wanted in merged if wanted is rule] for rule in Rule}
        self._variables = {rule: variables for rule, variables in self._variables.items() if variables}

    @contextlib.contextmanager
    def merged(self, share: ProcessShare) -> Iterator[None]:
        """Merges what the block changes."""
        before = {rule: _flat(variables) for rule, variables in self._variables.items()}
        yield
        if not before:
            return
        own = {rule: self._own(rule, old, share) for rule, old in before.items()}
        parts = self._processes.gather(ops.concatenate(list(own.values())))
        begin = 0
        for rule, old in before.items():
            end = begin + int(old.shape[0])
            self._assign(rule, _MERGE[rule]([part[begin:end] for part in parts], old, share))
            begin = end

    def _own(self, rule: Rule, old: Any, share: ProcessShare) -> Any:
        """Returns what this process contributes."""
        new = _flat(self._variables[rule])
        if not share.counts:
            nothing = {Rule.ADD: 0.0, Rule.SUM_OF_NEW: 0.0, Rule.SMALLEST: np.inf}
            return ops.full_like(new, nothing[rule]) if rule in nothing else old
        return new - ops.where(ops.isfinite(old), old, ops.zeros_like(old)) if rule is Rule.ADD else new

    def _assign(self, rule: Rule, values: Any) -> None:
        begin = 0
        for variable in self._variables[rule]:
            end = begin + int(np.prod(variable.shape))
            variable.assign(ops.cast(ops.reshape(values[begin:end], variable.shape), variable.dtype))
            begin = end


def _flat(variables: Sequence[keras.Variable]) -> Any:
    return ops.concatenate([ops.reshape(ops.cast(ops.stop_gradient(v), "float64"), (-1,)) for v in variables])


def _mean(parts: list[Any], old: Any, share: ProcessShare) -> Any:
    first = share.rows.index(max(share.rows))
    mean = parts[first]
    for rank, part in enumerate(parts):
        if share.rows[rank] and rank != first:  # the differences, so that what is the same everywhere stays so
            mean = mean + share.weights[rank] * (part - parts[first])
    return mean


def _smallest(parts: list[Any], old: Any, share: ProcessShare) -> Any:
    smallest = parts[0]
    for part in parts[1:]:
        smallest = ops.minimum(smallest, part)
    return smallest


_MERGE: dict[Rule, Callable[[list[Any], Any, ProcessShare], Any]] = {
    Rule.ADD: lambda parts, old, share: old + sum(parts[1:], parts[0]),
    Rule.SUM_OF_NEW: lambda parts, old, share: sum(parts[1:], parts[0]),
    Rule.SMALLEST: _smallest,
    Rule.MEAN: _mean,
    Rule.FIRST: lambda parts, old, share: parts[0],
}


# -- the steps of an engine -------------------------------------------------------------------------------------------


class SharedSteps(Workers):
    """Several processes, each of which computes its rows of every batch.

    Args:
      processes: The processes.
    """

    _steps: Steps

    def __init__(self, processes: Processes) -> None:
        self.count = self.processes = processes.size
        self._processes = processes
        self._mergers: dict[str, Merger] = {}

    @property
    def own_rows(self) -> OwnRows:
        """Which rows of a batch this process needs."""
        return lambda samples: ProcessShare(self._processes, [samples]).slice(samples)

    def prepare(self, steps: Steps, examples: Mapping[str, Batch], trace: Callable[..., Any]) -> None:
        """Prepares steps that are built; all processes start from the state of the first one.

        Raises:
          UsageError: The model has a layer that keeps a state for each sample.
        """
        for kind, window in steps.windows.items():
            if window.reduction == "last":
                trace(functools.partial(_find_results, steps, kind), examples[kind])
        self._steps = steps
        task, model, windows = steps.task, steps.model, steps.windows
        holders = [value for value in (model, *vars(task).values()) if isinstance(value, keras.Layer)]
        layers = [layer for holder in holders for layer in holder._flatten_layers(include_self=True)]
        refuse_states_of_samples(layers)
        for optimizer in steps.optimizers:
            sum_when_applied(optimizer)
        metrics = [metric for window in windows.values() for metric in window.metrics]
        of_task = [value for value in vars(task).values() if isinstance(value, keras.Metric)]
        joining = joining_metrics([*metrics, *of_task, *model.metrics])
        for metric in joining:
            update_with_all(metric)
        alike = [*own_weights(layers), *(v for holder in (*steps.optimizers, *joining) for v in holder.variables)]
        for kind, window in windows.items():
            others = [other for other in windows.values() if other is not window]
            self._mergers[kind] = Merger(self._processes, rules(steps.variables, window, others, alike))
        variables = list(steps.variables.values())
        values = [ops.stop_gradient(variable.value) for variable in variables]
        for variable, value in zip(variables, self._processes.first(values), strict=True):
            variable.assign(value)

    def own_batch(self, batch: Batch) -> Batch:
        """Returns the rows of this process of one batch."""
        share = ProcessShare(self._processes, _lengths(batch, 0))
        return _map_arrays(lambda leaf: _rows(leaf, share, 0), batch)

    def own_block(self, block: Block) -> Any:
        """Returns the rows of this process of all batches of a block; sparse and ragged ones are divided later."""
        if block.batch_size is not None:
            return block.data
        share = ProcessShare(self._processes, _lengths(block.data, 1))
        return _map_arrays(lambda leaf: _rows(leaf, share, 1), block.data)

    def begin_call(self, block: Block) -> None:
        """Notes what the whole batches of a block look like, whose steps follow."""
        lengths = _lengths(block.data, 1)
        self.lengths = tuple(lengths if block.batch_size is None else [block.batch_size] * len(lengths))

    def run(self, kind: str, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on the rows of this process, and merges what all have changed.

        Args:
          kind: What the step is for: `train` or `validation`.
          step: The step.
          batch: The rows of this process.

        Returns:
          None, or, where the step returns outputs, for each of them a tuple with its values for the whole batch.
        """
        steps, processes = self._steps, self._processes
        share = ProcessShare(processes, self.lengths)

        def own(leaf: Any) -> Any:
            is_whole = isinstance(leaf, _IN_PARTS)
            return processes.rows(steps.composed(leaf), share.slice(*_lengths(leaf, 0))) if is_whole else leaf

        with processes.own_draws():
            batch = _map_arrays(own, batch)
            with on_replica(share), self._mergers[kind].merged(share):
                outputs = step(batch)
            if not steps.returns_outputs(kind):
                return None
            return [share.output(leaf) for leaf in outputs]

    def parts(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the values of an output for the whole batch: one, or of a scalar one per process."""
        return value


def _find_results(steps: Steps, kind: str, batch: Batch) -> dict[str, Any]:
    """Finds which logs of a step are results of metrics, and makes the window read them from the metrics.

    The step of one process returns the results for its samples only.
    """
    window = steps.windows[kind]
    results: dict[int, tuple[Any, keras.Metric, str | None]] = {}

    def recording(metric: keras.Metric, result: Callable[[], Any]) -> Callable[[], Any]:
        def recorded() -> Any:
            value = result()
            parts = value.items() if isinstance(value, Mapping) else [(None, value)]
            results.update({id(part): (part, metric, name) for name, part in parts})
            return value

        return recorded

    with contextlib.ExitStack() as stack:
        for metric in window.metrics:
            object.__setattr__(metric, "result", recording(metric, metric.result))
            stack.callback(object.__delattr__, metric, "result")
        logs = steps.logs(kind, batch)
    window.results = {name: results[id(value)][1:] for name, value in logs.items() if id(value) in results}
    return {}


def _rows(leaf: Any, share: ProcessShare, axis: int) -> Any:
    """Returns the rows of this process of an array of a batch, or, along axis 1, of a block."""
    if isinstance(leaf, _IN_PARTS):
        return leaf
    part = share.slice(leaf.shape[axis])
    return leaf[:, part] if axis else leaf[part]


def _lengths(data: Any, axis: int) -> list[int]:
    """Returns how many samples the arrays of a batch have, or, along axis 1, those of each batch of a block."""
    if isinstance(data, SparseArray):
        return [int(data.rows.shape[axis])]
    if isinstance(data, RaggedArray):
        return [int(data.lengths[0].shape[axis])]
    if isinstance(data, dict | list | tuple):
        parts = data.values() if isinstance(data, dict) else data
        return [length for part in parts for length in _lengths(part, axis)]
    return [] if data is None else [int(data.shape[axis])]


def _map_arrays(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Returns the same nesting with `fn` of every array, and of every sparse or ragged one as a whole."""
    if isinstance(tree, _IN_PARTS):
        return fn(tree)
    if isinstance(tree, dict):
        return {key: _map_arrays(fn, part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_map_arrays(fn, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else fn(tree)
