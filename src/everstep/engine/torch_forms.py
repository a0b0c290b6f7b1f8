"""Faster forms of Keras's operations on PyTorch, in place of Keras's own while an engine runs a step.

Keras writes its layers for four backends. On PyTorch that leaves time on the table: each convolution copies its input
twice to change the layout, batch normalization is twenty operations over whole activations where PyTorch has one, and
an update of Adam is ten passes over all weights. `form` registers a function that computes the same, up to rounding, in
fewer passes over the memory of a GPU:

- `torch_layouts.py`: convolutions and pooling without copies, gradients of kernels in the layout of the kernel;
- `torch_norms.py`: batch and group normalization;
- `torch_products.py`: dense layers;
- `torch_updates.py`: updates of Adam, AdamW and SGD, clipping and averages.

They take effect on the types of devices in `DEVICES` only, so that the bits on a CPU are Keras's. Whoever adds a form
changes the bits of runs on a GPU, and says so in the changelog.

cuDNN's benchmark mode is not used: "Due to benchmarking noise and different hardware, the benchmark may select
different algorithms on subsequent runs, even on the same machine" (PyTorch's notes on reproducibility). A resumed run
would end with other bits, also among deterministic algorithms, and PyTorch cannot save what was selected. Without it,
cuDNN's heuristics select by the shapes alone.
"""

import contextlib
import contextvars
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from everstep.engine.replaced import replaced_in_all_threads
from everstep.keras_internals import get_device

LAYOUTS, NORMS, PRODUCTS, UPDATES = "layouts", "norms", "products", "updates"

DEVICES = {"cuda"}
"""The types of devices on which forms are used; tests add the CPU."""

KINDS = {LAYOUTS, NORMS, PRODUCTS, UPDATES}
"""The kinds of forms that are used; the benchmark of each takes the others out."""


class _Form(NamedTuple):
    kind: str
    owner: Callable[[], Any]
    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]


MODULES = ("torch_layouts", "torch_norms", "torch_products", "torch_updates")
"""The modules with forms, which register them when they are imported."""

_forms: list[_Form] = []
_used: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("forms", default=frozenset())


def form(kind: str, owner: Callable[[], Any], name: str) -> Callable[[Any], Any]:
    """Registers a form of an operation.

    Args:
      kind: A member of `KINDS`.
      owner: Returns the class or the module that has the operation; called when a step runs.
      name: The name of the operation.

    Returns:
      A decorator for a function that is given Keras's operation and returns what takes its place.
    """

    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _forms.append(_Form(kind, owner, name, make))
        return make

    return register


@contextlib.contextmanager
def forms() -> Iterator[None]:
    """Uses the registered forms inside the block, for the code of this thread and of what it calls."""
    kinds = frozenset(KINDS) if get_device().partition(":")[0] in DEVICES else frozenset()
    for module in MODULES if kinds else ():
        importlib.import_module(f"everstep.engine.{module}")
    with contextlib.ExitStack() as stack:
        for one in _forms if kinds else ():
            stack.enter_context(replaced_in_all_threads(one.owner(), one.name, functools.partial(_selected, one)))
        token = _used.set(kinds)
        try:
            yield
        finally:
            _used.reset(token)


def _selected(one: _Form, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls the form where it is used, else the original."""
    faster = one.make(original)

    @functools.wraps(original)
    def operation(*args: Any, **kwargs: Any) -> Any:
        return (faster if one.kind in _kinds_here() else original)(*args, **kwargs)

    return operation


def _kinds_here() -> frozenset[str]:
    """Returns the kinds that the calling thread uses.

    A layer that is rematerialized is called again in the backward pass, in a thread that PyTorch has started. It has to
    do what it did the first time.
    """
    if isinstance(threading.current_thread(), threading._DummyThread):
        return frozenset(KINDS)
    return _used.get()
