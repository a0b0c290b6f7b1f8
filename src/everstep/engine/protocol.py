"""`Backend`: what computes, one implementation for each backend of Keras. `Engine` runs it.

A backend has eight methods of its own, in the order in which they are called:

    trace      what a step returns, found without changing anything
    compile    prepares the steps, once everything is built
    place      a block of batches onto the device
    run        the steps of a piece, in one call
    read       the logs of a window
    get, set   values of variables
    wait       until the device has finished

All others have a form that is right where the Keras variables are the state, one device computes, and Python runs each
step; a backend overrides what it does otherwise. What is the same everywhere is not here: `Engine` plans the calls,
times them, and moves the state; `Steps` is the code of a step; `Workers` are the devices and processes that share one.
"""

import abc
import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import keras
import numpy as np

from everstep.checkpoint import array_bytes
from everstep.data import Block, RaggedArray, SparseArray, nest
from everstep.engine import exactness, finite
from everstep.engine import state as states
from everstep.engine.batch_dtypes import on_host
from everstep.engine.call_length import LoopLengths
from everstep.engine.feed import Piece
from everstep.engine.steps import Steps
from everstep.engine.window import WindowSums
from everstep.engine.workers import Workers
from everstep.errors import UsageError
from everstep.types import ArrayParts, Batch, Logs, OwnState, StoredArray


@dataclasses.dataclass
class EngineOptions:
    """How steps are compiled; it must not change once an engine is built.

    Attributes:
      enable_xla: Whether to compile with XLA where the backend leaves the choice.
      cuda_graph: Whether to record steps as CUDA graphs on PyTorch.
      compiler_options: Options of XLA, on JAX.
      deterministic: False allows operations that are not deterministic, on a GPU; True refuses them.
    """

    enable_xla: bool = False
    cuda_graph: bool = True
    compiler_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    deterministic: bool | Literal["auto"] = "auto"


class Traced(NamedTuple):
    """What a trace of a step has shown.

    Attributes:
      shapes: The shapes of the step's outputs, by name.
      label_classes: The numbers of classes of the sparse cross-entropies that got the labels of the batch.
      flops: The floating-point operations of the step, as far as they are known.
    """

    shapes: dict[str, tuple[int, ...]]
    label_classes: frozenset[int] = frozenset()
    flops: float = 0.0


class Backend(abc.ABC):
    """Computes the steps of one engine; see the module.

    Args:
      options: How steps are compiled.

    Attributes:
      workers: The devices and processes that share each step.
      loop_lengths: Which lengths calls may have, see `CallLength`; read after `compile`.
      is_eager: Whether the Python code of a step runs at every step, instead of only when it is compiled.
      compilations: How often a program was compiled or recorded for the steps; once where several ways were tried.
      reads_copies: Whether arrays that `get` returns are copies, which no step overwrites.
      traces_gradients: Whether the first trace of a training step includes its gradients.
      sums: The sums of a window.
    """

    traces_gradients: ClassVar[bool] = True
    sums: ClassVar[type[WindowSums]] = WindowSums

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = EngineOptions() if options is None else options
        self.workers = Workers()
        self.loop_lengths: LoopLengths = "eager"
        self.is_eager = True
        self.compilations = 0
        self.reads_copies = False

    # -- what every backend has --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def trace(self, steps: Steps, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        """Runs a step on the shapes of a batch, or runs it and undoes it: afterwards no variable has changed.

        Called before `compile`, and maybe several times; the step may create variables.

        Args:
          steps: What the step belongs to.
          step: Takes a batch on the device, and returns tensors by name.
          batch: A batch on the host.
        """

    @abc.abstractmethod
    def compile(self, steps: Steps, examples: Mapping[str, Batch]) -> None:
        """Keeps the steps, and prepares to run them; everything is built, and `steps.variables` is complete.

        Args:
          steps: The steps: `steps.run(kind, batch)` is one, inside of `steps.guarded()`.
          examples: A batch on the host for each kind of step, `train` and `validation`.
        """

    @abc.abstractmethod
    def place(self, block: Block, single: bool = False) -> Any:
        """Places what this process needs of a block on the device; called by the thread of the feed.

        Args:
          block: The batches, stacked.
          single: Whether all blocks of this feed hold a single batch.
        """

    @abc.abstractmethod
    def run(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the steps of a kind on the batches of a piece; may return before the device has finished.

        Returns:
          Empty, unless `steps.returns_outputs(kind)`. Then the piece is a single batch, and this is what
          `steps.run` returned for it, on the host, with one array for each worker in place of each leaf.
        """

    @abc.abstractmethod
    def read(self, kind: str) -> Callable[[], Logs]:
        """Returns a function that returns the logs of the open window as of this call, also after later steps."""

    @abc.abstractmethod
    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the current values of some variables; they may be views, so copy them before the next step."""

    @abc.abstractmethod
    def set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until the device has finished all steps."""

    # -- how steps run -----------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        return {"device": "cpu", "loop": "eager", "replicas": self.workers.count}

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps so far can be repeated on this device; see `exactness.py`.

        Empty on a CPU, where they always can, and before the first step.
        """
        if self.describe()["device"] == "cpu":
            return {}
        if self.options.deterministic is False:
            return {"level": exactness.NONE, "reason": exactness.NOT_REQUESTED}
        return {"level": exactness.OPTION}

    def runs_single_steps(self, kind: str) -> bool:
        """Whether it was found out that each step of a kind must be a call; asked after each call."""
        return False

    def assemble(self, parts: SparseArray | RaggedArray) -> Any:
        """Returns a sparse or ragged tensor, or a dense one in place of a sparse one, from its parts on the device."""
        raise UsageError(
            f"a batch holds a {'sparse' if isinstance(parts, SparseArray) else 'ragged'} tensor, which the backend "
            f"{keras.backend.backend()!r} does not support",
            remedy="pad it to one shape, as x.to_tensor() does, or train on TensorFlow",
        )

    def place_whole(self, arrays: Any) -> Any:
        """Places whole arrays on the device, where the steps gather their batches (`PlacedRows`)."""
        return nest.map_leaves(lambda leaf: keras.ops.convert_to_tensor(on_host(leaf)), arrays)

    def keeps_placement(self, kind: str, fits: bool, wanted: bool) -> bool:
        """Returns whether the data of a kind lives on the device; see `Engine.keeps_placement`."""
        return wanted

    def reset(self, kind: str, window: WindowSums) -> None:
        """Opens the next window of a kind."""
        window.reset()

    def read_finite_steps(self, count: keras.Variable) -> Callable[[], float]:
        """Returns a function that returns the count of a window's `FiniteSteps` as of this call."""
        value = float(keras.ops.convert_to_numpy(count.value))
        return lambda: value

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of a training step that has run; None if they are unknown."""
        return None

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of `task.inference_step` on a batch; None if they are unknown."""
        return None

    # -- where the Keras variables are not the state -----------------------------------------------------------------

    def owners(self) -> dict[str, Any]:
        """Returns holders of variables that belong to the state and are not the user's, by role."""
        return {}

    def push(self) -> None:  # noqa: B027
        """Writes the state to the Keras objects, before user code reads them."""

    def pull(self) -> None:  # noqa: B027
        """Reads the state from the Keras objects, after user code may have changed them."""

    def assign(self, variable: keras.Variable, key: str, value: np.ndarray | StoredArray) -> None:
        """Assigns a value of the host to a Keras object."""
        variable.assign(np.asarray(value).astype(variable.dtype))

    def exchange(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Swaps the values of the two variables of each pair, bit by bit."""
        keys = [key for pair in pairs for key in pair]
        values = {key: value.copy() for key, value in self.get(keys).items()}
        other = dict(pairs) | {second: first for first, second in pairs}
        self.set(keys, {key: values[other[key]] for key in keys})

    def copy(self, keys: Sequence[str], into: OwnState | None = None) -> OwnState:
        """Returns copies of some variables in the stored form, of what is divided only the parts of this process.

        Args:
          keys: The keys of the variables.
          into: The result of an earlier call that is no longer needed; its memory is reused.
        """
        values = self.get_own_parts(keys)
        is_view = not self.reads_copies
        return {key: states.own(value, (into or {}).get(key), copy=is_view) for key, value in values.items()}

    def prepare_copies(self, keys: Sequence[str]) -> None:  # noqa: B027
        """Is called before training with the keys that `copy` will be called with, if it will be."""

    def non_finite(self, keys: Sequence[str], state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity.

        Args:
          keys: The keys of all variables of the state.
          state: What `copy` has just returned, where the caller has it: then nothing is read again.
        """
        return finite.non_finite(self.get_own_parts(keys) if state is None else state)

    def checksums(self, keys: Sequence[str]) -> dict[str, int]:
        """Returns a number for each variable that is another one if its bits have changed; see `Engine.checksums`."""
        return {key: zlib.crc32(array_bytes(self.get([key])[key])) for key in keys}

    # -- where variables are divided over several processes ----------------------------------------------------------

    @property
    def is_spread(self) -> bool:
        """Whether variables are divided over several processes: to read one, all of them must take part."""
        return False

    def get_own_parts(self, keys: Sequence[str]) -> Mapping[str, np.ndarray | ArrayParts]:
        """Returns what `get` does, but of what is divided only the parts of this process."""
        return self.get(keys)

    @contextlib.contextmanager
    def whole_model(self, others: Sequence[keras.Variable] = ()) -> Iterator[None]:
        """Inside the block this process can use the Keras model alone; see `Engine.whole_model`."""
        yield

    # -- where several calls of `fit` share an engine ----------------------------------------------------------------

    def reuse(self) -> bool:
        """Prepares for another run with the same steps; returns whether that is possible."""
        return True

    def release(self) -> None:  # noqa: B027
        """Drops copies of the state; compiled programs stay."""
