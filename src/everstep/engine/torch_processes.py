"""One step on several processes with PyTorch: each has a slice of the global batch, and one device.

`Processes` has the few operations that they share; all call them in the same order. A step needs two: the gradients are
summed in large flat buffers (`ProcessShare`), and what the step has changed beside the weights is merged in one
(`Merger`). Both add in a fixed order, so the bits are the same on every process and in every run of as many processes.
"""

import contextlib
import datetime
import functools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import keras.src.backend.torch.random as keras_random
import numpy as np
import torch
import torch.distributed as dist

from everstep.data.sparse import SparseArray
from everstep.engine.merging import Rule
from everstep.engine.shares import Share
from everstep.errors import TrainingError
from everstep.gang import Gang, current_gang, find_coordinates
from everstep.task.grad import current_share, on_replica

BUFFER_BYTES = 256 * 2**20  # of gradients that are summed at once
TIMEOUT = datetime.timedelta(minutes=30)  # a process that is dead or frozen is found sooner, by the launcher
_GOLDEN = 0x9E3779B9  # between the seeds of two processes; seeds of one process are consecutive


def joined() -> "Processes | None":
    """Returns the processes that this one trains with, connected to each other; None if it is alone."""
    gang = current_gang()
    if gang.size == 1:
        return None
    if not dist.is_initialized():
        use_own_device()
        _connect(gang)
    return Processes(gang.rank, gang.size)


def use_own_device() -> None:
    """Selects a GPU for this process: each process of a machine has one of its own, as far as there are enough."""
    gang = current_gang()
    if gang.size == 1 or not torch.cuda.is_available():
        return
    here = [member.rank for member in gang.members if member.host == gang.members[gang.rank].host]
    torch.cuda.set_device(here.index(gang.rank) % torch.cuda.device_count())


def _connect(gang: Gang) -> None:
    """Connects the processes: by nccl where each has a GPU of its own, else by gloo."""
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else ""
    gpus = gang.gather("the GPU of each process", gpu)
    backend = "cpu:gloo,cuda:nccl" if all(gpus) and len(set(gpus)) == gang.size else "gloo"
    coordinates = find_coordinates()
    host = coordinates.host_and_port[0] if coordinates else "localhost"
    is_local = host in ("127.0.0.1", "localhost")
    if is_local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port, listener = 0, None
    if gang.is_first:
        listener = socket.create_server(("127.0.0.1" if is_local else "", 0))
        port = listener.getsockname()[1]
    port = gang.share("the port for gradients", port)
    fd = None if listener is None else listener.detach()
    store = dist.TCPStore(host, port, gang.size, gang.is_first, TIMEOUT, master_listen_fd=fd)
    dist.init_process_group(backend, store=store, rank=gang.rank, world_size=gang.size, timeout=TIMEOUT)


class Processes:
    """What the processes of a run compute together.

    Args:
      rank: The number of this process.
      size: The number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def sum(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the sums over all processes, which can be differentiated if the tensors can."""
        if any(tensor.requires_grad for tensor in tensors):
            return list(_Sum.apply(self, *tensors))
        return self._in_buffers(tensors, lambda flat: dist.all_reduce(flat))

    def first(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors of the first process."""
        return self._in_buffers(tensors, lambda flat: dist.broadcast(flat, 0))

    def each(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensor of each process; their lengths may differ, further dimensions must not."""
        lengths = [int(part) for part in self.gather(torch.tensor([len(tensor)]))]
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        return [part[:length] for part, length in zip(self.gather(padded), lengths, strict=True)]

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensor of each process; they have the same shape."""
        own = _sent(tensor.detach())
        parts = [torch.empty_like(own) for _ in range(self.size)]
        _together(lambda: dist.all_gather(parts, own))
        return [part.to(tensor.device) for part in parts]

    def _in_buffers(self, tensors: Sequence[torch.Tensor], run: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
        """Calls a function on flat buffers, each with many tensors of one type; returns their parts as tensors."""
        results: dict[int, torch.Tensor] = {}
        for indices in _buffers(tensors):
            flat = _sent(torch.cat([tensors[index].detach().reshape(-1) for index in indices]))
            _together(functools.partial(run, flat))
            parts = flat.to(tensors[indices[0]].device).split([tensors[index].numel() for index in indices])
            results |= {index: part.view(tensors[index].shape) for index, part in zip(indices, parts, strict=True)}
        return [results[index] for index in range(len(tensors))]


class _Sum(torch.autograd.Function):
    """The sum over all processes; so is its gradient."""

    @staticmethod
    def forward(context: Any, processes: Processes, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.processes = processes
        return tuple(part.clone() for part in processes.sum([tensor.detach() for tensor in tensors]))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return None, *context.processes.sum(gradients)


def _buffers(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yields the numbers of the tensors for each buffer."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        indices: list[int] = []
        size = 0
        for index, tensor in enumerate(tensors):
            if tensor.dtype != dtype:
                continue
            if indices and size + tensor.nbytes > BUFFER_BYTES:
                yield indices
                indices, size = [], 0
            indices.append(index)
            size += tensor.nbytes
        yield indices


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on a device whose tensors can be sent: gloo sends those of the host."""
    return tensor.contiguous() if not tensor.is_cuda or _has_nccl() else tensor.cpu()


def _has_nccl() -> bool:
    return "nccl" in str(dist.get_backend_config())


def _together(operation: Callable[[], Any]) -> None:
    try:
        operation()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(f"another process of this run has ended, or cannot be reached: {reason}") from error


# -- the share of this process in a step ------------------------------------------------------------------------------


class ProcessShare(Share):
    """The share of this process in one step: its slice of the batch.

    If there are fewer samples than processes, all compute the whole batch, and what the first one computes counts.

    Args:
      processes: The processes that share the step.
      lengths: How many samples the arrays of the batch have; those of several tasks may differ.
    """

    def __init__(self, processes: Processes, lengths: Sequence[int]) -> None:
        self.processes = processes
        self._is_divided = min(lengths) >= processes.size
        self.rows = [len(range(lengths[0])[self.slice(lengths[0], rank)]) for rank in range(processes.size)]
        if not self._is_divided:
            self.rows = [lengths[0], *[0] * (processes.size - 1)]
        own = {(len(range(length)[self.slice(length)]), length) for length in lengths}
        counts = self.rows[processes.rank] > 0
        super().__init__(own if counts else {(0, length) for length in lengths}, counts)

    def slice(self, length: int, rank: int | None = None) -> slice:
        """Returns which of so many samples a process computes, by default this one."""
        rank = self.processes.rank if rank is None else rank
        size = self.processes.size
        return slice(length * rank // size, length * (rank + 1) // size) if self._is_divided else slice(length)

    @property
    def weights(self) -> list[float]:
        """The part of the samples of each process."""
        return [rows / sum(self.rows) for rows in self.rows]

    def join(self, value: Any) -> Any:
        """Returns the value for the whole batch of one that has a part for each sample; of a scalar, the mean."""
        if not isinstance(value, torch.Tensor | np.ndarray):
            return value
        tensor = keras.ops.convert_to_tensor(value)
        if tensor.ndim:
            return torch.cat(self.processes.each(tensor if self.counts else tensor[:0]))
        scalars = self.processes.each(tensor.reshape(1))
        whole = sum(weight * part[0] for weight, part in zip(self.weights, scalars, strict=True) if weight)
        return keras.ops.cast(whole, tensor.dtype)

    def _sum(self, gradients: list[Any]) -> list[Any]:
        return self.processes.sum(gradients if self.counts else [torch.zeros_like(part) for part in gradients])

    def _sum_own(self, gradients: list[Any]) -> list[Any]:
        return self._sum([gradient * self.weight for gradient in gradients])

    def _make_alike(self, gradients: list[Any]) -> list[Any]:
        return self.processes.first(gradients)


def process_share() -> ProcessShare | None:
    """Returns the share of this process in the step that runs; None if it has the whole batch."""
    share = current_share()
    return share if isinstance(share, ProcessShare) else None


def sum_when_applied(optimizer: Any) -> None:
    """Makes an optimizer sum those gradients that the step did not get from `everstep.value_and_grad`."""
    apply = getattr(optimizer.apply, "unsummed", optimizer.apply)

    def of_sums(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        share = process_share()
        if share is not None and len(grads):
            known = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
            with torch.no_grad():
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
            with torch.no_grad():
                args, kwargs = keras.tree.map_structure(share.join, (args, kwargs))
        return update(*args, **kwargs)

    update_state.of_own_part = update  # type: ignore[attr-defined]
    object.__setattr__(metric, "update_state", update_state)


@contextlib.contextmanager
def draws_of_this_process() -> Iterator[None]:
    """Makes random layers draw other numbers in each process; the states of their seed generators stay the same."""
    original = keras_random.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn, share = original(seed), process_share()
        if share is None:
            return drawn
        offset = torch.tensor([share.processes.rank * _GOLDEN % 2**32, 0])
        return drawn.to("cpu", torch.int64) + offset

    keras_random.draw_seed = draw_seed
    try:
        yield
    finally:
        keras_random.draw_seed = original


# -- what a step changes beside the weights ---------------------------------------------------------------------------


class Merger:
    """Merges variables after a step: all values travel in one buffer of float64, and are merged in order of rank.

    Args:
      processes: The processes that share the steps.
      rules: The variables, and how each is merged.
    """

    def __init__(self, processes: Processes, rules: Sequence[tuple[keras.Variable, Rule]]) -> None:
        self._processes = processes
        self._by_rule = {rule: [variable for variable, r in rules if r is rule] for rule in Rule}
        self._variables = [variable for held in self._by_rule.values() for variable in held]
        lengths = {rule: sum(v._value.numel() for v in held) for rule, held in self._by_rule.items()}
        ends = dict(zip(lengths, np.cumsum(list(lengths.values())).tolist(), strict=True))
        self._places = {rule: slice(ends[rule] - lengths[rule], ends[rule]) for rule in lengths}

    @contextlib.contextmanager
    def merged(self, share: ProcessShare) -> Iterator[None]:
        """Merges what the block has changed."""
        before = self._read()
        yield
        if not self._variables:
            return
        after = self._read() if share.counts else before.clone()
        add, smallest = self._places[Rule.ADD], self._places[Rule.SMALLEST]
        after[add] -= torch.where(torch.isfinite(before[add]), before[add], 0.0)
        if not share.counts:
            after[self._places[Rule.LAST]] = 0.0
            after[smallest] = np.inf
        parts = self._processes.gather(after)
        result = parts[first := share.rows.index(max(share.rows))].clone()
        for rank, part in enumerate(parts):
            for rule in (Rule.ADD, Rule.LAST):
                place = self._places[rule]
                result[place] = part[place] if rank == 0 else result[place] + part[place]
            result[smallest] = torch.minimum(result[smallest], part[smallest])
            mean = self._places[Rule.MEAN]
            if share.rows[rank] and rank != first:  # the differences, so that what is the same everywhere stays so
                result[mean] += share.weights[rank] * (part[mean] - parts[first][mean])
        result[add] += before[add]
        self._write(result)

    def _read(self) -> torch.Tensor:
        if not self._variables:
            return torch.zeros(0, dtype=torch.float64)
        with torch.no_grad():
            return torch.cat([v._value.detach().reshape(-1).to(torch.float64) for v in self._variables])

    def _write(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            parts = values.split([variable._value.numel() for variable in self._variables])
            for variable, part in zip(self._variables, parts, strict=True):
                variable._value.copy_(part.view(variable._value.shape))


def lengths(block: Any) -> list[int]:
    """Returns how many samples the arrays of a block have in each of its batches."""
    if isinstance(block, SparseArray):
        return [int(block.rows.shape[1])]
    if isinstance(block, dict | list | tuple):
        parts = block.values() if isinstance(block, dict) else block
        return [length for part in parts for length in lengths(part)]
    return [] if block is None else [int(block.shape[1])]


def map_arrays(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Returns the same nesting with `fn` of every array, and of every sparse array as a whole."""
    if isinstance(tree, SparseArray):
        return fn(tree)
    if isinstance(tree, dict):
        return {key: map_arrays(fn, part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [map_arrays(fn, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else fn(tree)
