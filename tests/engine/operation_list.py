"""A graph on a CPU: a list of PyTorch's operations with their tensors, to test recorded steps without a GPU.

It keeps the rules of a CUDA graph: a replay runs no Python of the step, uses the same memory, does not count as an
assignment (`Tensor._version`), and draws from generators that are seeded before each replay.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from everstep.engine.engine import Engine
from everstep.engine.protocol import EngineOptions
from everstep.engine.torch import TorchBackend


class OperationList(TorchDispatchMode):
    """The counterpart of `CudaGraph`."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.recording = False

    def run(self, step):
        return step()

    def rehearse(self, step):
        step()

    def record(self, step, generators):
        self.recording = True
        with self:
            outputs = step()
        self.recording = False
        return outputs

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
        writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments(func))
        views = any(value.alias_info is not None for value in func._schema.returns)
        if outputs and (writes or not views):
            self.calls.append((func, args, kwargs or {}, [] if writes else outputs))
        elif writes:
            self.calls.append((func, args, kwargs or {}, []))
        return result

    @contextlib.contextmanager
    def drawing_from(self, generator):
        default, kept = torch.default_generator, {}

        def enter():
            kept["state"] = default.get_state()
            default.set_state(generator.get_state())

        def leave():
            default.set_state(kept["state"])

        for change in (enter, leave):
            change()
            if self.recording:
                self.calls.append((change, (), {}, []))
            if change is enter:
                yield

    def replay(self):
        with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView():
            for func, args, kwargs, outputs in self.calls:
                result = func(*args, **kwargs)
                new = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
                for kept, value in zip(outputs, new, strict=bool(outputs)):
                    kept.copy_(value)


def arguments(func):
    return func._schema.arguments


class RecordingBackend(TorchBackend):
    """Runs steps as on a GPU, with `OperationList` instead of CUDA graphs."""

    def _graph_type(self):
        return OperationList if self.options.cuda_graph else None


def recording_engine(task, model, optimizer=None, **options):
    """Creates an engine that records its steps."""
    return Engine(task, model, optimizer, RecordingBackend(EngineOptions(**options)))
