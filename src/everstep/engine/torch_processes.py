"""What several processes compute together on PyTorch: `torch.distributed`, by nccl on GPUs, by gloo elsewhere.

Tensors travel in large flat buffers. Gloo and nccl's rings add in an order that depends on the number of processes
only, and every process receives the same sums.
"""

import contextlib
import datetime
import functools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from everstep.engine.processes import Processes, seed_offset
from everstep.errors import TrainingError
from everstep.gang import Gang, current_gang, find_coordinates
from everstep.keras_internals import torch_random as keras_random

BUFFER_BYTES = 256 * 2**20  # of gradients that are summed at once
TIMEOUT = datetime.timedelta(minutes=30)  # a process that is dead or frozen is found sooner, by the launcher


def joined() -> "TorchProcesses | None":
    """Returns the processes that this one trains with, connected to each other; None if it is alone."""
    gang = current_gang()
    if gang.size == 1:
        return None
    if not dist.is_initialized():
        use_own_device()
        _connect(gang)
    return TorchProcesses(gang.rank, gang.size)


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
    host, is_local = (coordinates.host_and_port[0], coordinates.is_local) if coordinates else ("localhost", True)
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


class TorchProcesses(Processes):
    """The processes of a run on PyTorch."""

    def sum(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the sums over all processes, which can be differentiated if the tensors can."""
        if any(tensor.requires_grad for tensor in tensors):
            return list(_Sum.apply(self, *tensors))
        return self._in_buffers(tensors, lambda flat: dist.all_reduce(flat))

    def first(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors of the first process."""
        return self._in_buffers(tensors, lambda flat: dist.broadcast(flat, 0))

    def join(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all processes, one after the other; they may differ in length."""
        lengths = [int(part) for part in self.gather(torch.tensor([len(tensor)]))]
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor.detach()
        return torch.cat([part[:length] for part, length in zip(self.gather(padded), lengths, strict=True)])

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensor of each process; they have the same shape."""
        own = _sent(tensor.detach())
        parts = [torch.empty_like(own) for _ in range(self.size)]
        _together(lambda: dist.all_gather(parts, own))
        return [part.to(tensor.device) for part in parts]

    def own_draws(self) -> contextlib.AbstractContextManager[None]:
        """Makes random layers draw other numbers in each process inside the block."""
        return _other_draws()

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
    def forward(context: Any, processes: TorchProcesses, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
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
        with current_gang().waiting():
            operation()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(f"another process of this run has ended, or cannot be reached: {reason}") from error


@contextlib.contextmanager
def _other_draws() -> Iterator[None]:
    original = keras_random.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn, offset = original(seed), seed_offset()
        return drawn.to("cpu", torch.int64) + torch.tensor([offset, 0]) if offset else drawn

    keras_random.draw_seed = draw_seed
    try:
        yield
    finally:
        keras_random.draw_seed = original
