"""The backend for JAX: the state is a list of arrays that goes in and out of one compiled function.

The whole step runs inside a `StatelessScope` over all variables. How n steps are one call is recorded with the run
(`describe`), and follows from the model and the device, not from a timing:

- `while`, on one CPU: a loop over a block with room for the longest call, of which the first n batches are filled. The
  number n is an input, so that one program serves calls of every length.
- `scan`, elsewhere: a `lax.scan` over n stacked batches, compiled for each length. A GPU would wait for the host before
  each step of a loop whose length the program does not know.
- `single`, for a step with a convolution on a CPU: inside a loop it is several times slower and gives other bits. On a
  GPU, for steps of a millisecond and more: `certified.py` decides that at the first one.

Several devices (`mesh.py`) share the batch, and may share the state: then each holds a part of the large variables.

How many steps n one call runs is decided by `call_length.py`.
"""

import contextlib
import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import NamedSharding

from everstep.data import Block, RaggedArray, SparseArray, aligned, nest
from everstep.engine import flops
from everstep.engine import state as states
from everstep.engine.batch_dtypes import on_host
from everstep.engine.call_length import most_steps
from everstep.engine.certified import Call, Certifier, options_of
from everstep.engine.device_data import PlacedRows
from everstep.engine.feed import Piece
from everstep.engine.jax_copies import HostCopies
from everstep.engine.logs import floats
from everstep.engine.mesh import DeviceMesh, SingleDevice, current_mesh, is_divided
from everstep.engine.probe import updates_skipped, watch_sparse_labels
from everstep.engine.programs import current_programs
from everstep.engine.protocol import Backend, EngineOptions, Traced
from everstep.engine.sharded_init import on_every_host, own_parts
from everstep.engine.steps import Steps
from everstep.engine.window import WindowSums
from everstep.errors import UsageError
from everstep.task import ChainedScope, gradients_skipped, unpack
from everstep.types import ArrayParts, Batch, Logs, OwnState, StoredArray

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # calls that were dispatched to the device and not yet awaited


class PartlyFilled(NamedTuple):
    """A block with room for more batches than it has.

    Attributes:
      data: The batches' nesting; what follows the first `count` batches has no meaning.
      count: How many batches there are.
    """

    data: Any
    count: Any


class JaxBackend(Backend):
    """Runs steps on JAX."""

    traces_gradients = False

    def __init__(self, options: EngineOptions | None = None) -> None:
        super().__init__(options)
        self._mesh: DeviceMesh | SingleDevice = current_mesh() or SingleDevice()
        self.workers = self._mesh
        self.is_eager = False
        self.loop_lengths = "compiled"
        self._convolves = False
        self._pending: deque[Any] = deque()
        self._names: dict[str, list[str]] = {}
        self._zeros: dict[str, dict[int, np.ndarray]] = {}
        self._logs: dict[str, list[Any]] = {}  # of the last call, until something else changes the state
        self._functions: dict[tuple[str, str], Any] = {}  # by kind and way of lowering
        self._compiled: dict[Any, Any] = {}  # certified programs by kind and shapes of their batches
        self._certifier: Certifier | None = None
        self._host_copies: dict[tuple[str, ...], HostCopies | None] = {}  # by the keys of the variables

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        loop = "single" if self._single else "while" if self.loop_lengths == "any" else "scan"
        mesh = self._mesh.describe()
        return {"device": jax.default_backend(), "loop": loop, "replicas": self.workers.count, **mesh}

    @property
    def _single(self) -> bool:
        return self._convolves and jax.default_backend() == "cpu"

    # -- compiling -------------------------------------------------------------------------------------------------

    def trace(self, steps: Steps, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        """Traces a step without its gradients."""
        skipped = updates_skipped(steps.optimizers)
        with ChainedScope(), watch_sparse_labels() as seen, gradients_skipped(), skipped:

            def traced(data: Any) -> tuple[Any, list]:
                outputs = step(data)
                return outputs, [getattr(labelled.target, "primal", labelled.target) for labelled in seen]

            jaxpr, (outputs, _) = jax.make_jaxpr(traced, return_shape=True)(nest.map_leaves(_abstract, batch))
        self._convolves |= _uses(jaxpr.jaxpr, "conv_general_dilated")
        targets = jaxpr.jaxpr.outvars[len(jaxpr.jaxpr.outvars) - len(seen) :]
        classes = frozenset(
            labelled.classes
            for labelled, target in zip(seen, targets, strict=True)
            if _source(jaxpr.jaxpr, target) is _labels(jaxpr.jaxpr, batch)
        )
        shapes = {name: tuple(value.shape) for name, value in outputs.items()}
        return Traced(shapes, classes, flops.of_products(jaxpr.jaxpr))

    def compile(self, steps: Steps, examples: Mapping[str, Batch]) -> None:
        """Captures the state; each program is compiled when it is first called."""
        self._steps = steps
        if not self._certifies and (self._single or (jax.default_backend() == "cpu" and self._mesh.is_one_device)):
            self.loop_lengths = "single" if self._single else "any"
        self._state_variables = list(steps.variables.values())
        self._positions = {key: position for position, key in enumerate(steps.variables)}
        # By position: `_values` is the state. When a variable and the state were last equal, the variable had the array
        # `_shown` and the state `_pushed`: where either has another one now, it has changed, and is copied.
        self._values: list[Any] = [None] * len(self._state_variables)
        self._shown: list[Any] = [None] * len(self._state_variables)
        self._pushed: list[Any] = [None] * len(self._state_variables)
        self._place_variables()
        self._certifier = self._new_certifier()
        reading = self._mesh.output_shardings(self._shardings, 1)
        self._read_all = jax.jit(self._pure(self._read_values), static_argnums=1, **reading)

    @property
    def _certifies(self) -> bool:
        """Whether programs may differ from process to process, and operations may race: on a GPU."""
        return jax.default_backend() == "gpu"

    def _new_certifier(self) -> Certifier | None:
        """Returns what certifies programs; None where every program repeats, and in several processes.

        Several processes could repeat a step only together: they use XLA's option for deterministic operations.
        """
        if not self._certifies:
            return None
        if self._mesh.spans_processes:
            options = {**self.options.compiler_options, **options_of(self.options.deterministic)}
            self.options.compiler_options = options
            return None
        return Certifier(self.options.deterministic, self.options.compiler_options, current_programs())

    def runs_single_steps(self, kind: str) -> bool:
        """Whether the certifier has decided so, maybe in an earlier attempt."""
        return self._certifier is not None and self._certifier.runs_several(kind) is False

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps so far can be repeated; see `Backend.exactness`."""
        return super().exactness if self._certifier is None else self._certifier.exactness

    def _function(self, kind: str, lowered: str = "plain") -> Any:
        """Returns the jitted function of the steps of a kind."""
        if (kind, lowered) not in self._functions:
            options: dict[str, Any] = {"donate_argnums": 0}
            if self._certifier is None:
                options["compiler_options"] = self.options.compiler_options or None
            options |= self._mesh.output_shardings(self._shardings, 2)
            step = functools.partial(self._steps.run, kind)
            self._functions[kind, lowered] = jax.jit(self._loop(kind, step), **options)
        return self._functions[kind, lowered]

    def _run_steps(self, kind: str, state: list, block: Any) -> tuple[list, Any, Any]:
        """Runs the compiled steps of a block; the first call of a program certifies it."""
        if self._certifier is None:
            return self._function(kind)(state, block)
        if _steps_of(block) > 1 and not self._certifier.runs_several(kind):  # or not yet decided
            return self._step_by_step(kind, state, block)
        leaves, structure = jax.tree.flatten(block)
        program = kind, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if (compiled := self._compiled.get(program)) is not None:
            return compiled(state, block)
        single_steps = functools.partial(self._step_by_step, kind) if _steps_of(block) > 1 else None
        call = Call(self._mesh.place_state(state), block, self._changed_by(kind))
        self.compilations += 1
        try:
            compiled, results = self._certifier.first_call(
                kind, functools.partial(self._function, kind), call, single_steps
            )
        except BaseException:
            self._values = call.state_before()  # programs that were tried have consumed it
            raise
        if compiled is not None:
            self._compiled[program] = compiled
        return results

    def _changed_by(self, kind: str) -> list[int]:
        """Returns the positions of the variables that steps of a kind may change."""
        variables = self._steps.variables
        if kind == "train":
            return [n for n, key in enumerate(variables) if key not in self._steps.frozen]
        roles = ("model/", "optimizer/")
        return [n for n, (key, v) in enumerate(variables.items()) if not (v.trainable and key.startswith(roles))]

    def _step_by_step(self, kind: str, state: list, block: Any) -> tuple[list, Any, Any]:
        """Runs the steps of a block in a call each."""
        results: tuple[list, Any, Any] = state, [], None
        for number in range(_steps_of(block)):
            results = self._run_steps(kind, results[0], _one_of(block, number))
        return results

    def _place_variables(self) -> None:
        """Decides where each variable is, and places the Keras objects there if variables are divided."""
        self._is_divided = [False] * len(self._state_variables)
        self.reads_copies = jax.default_backend() != "cpu"
        is_shared = self._mesh.is_one_device and jax.default_backend() != "cpu"
        self._is_shared = [is_shared] * len(self._state_variables)
        # Empty for one device.
        self._shardings: list[NamedSharding] = list(self._mesh.shardings(self._steps.variables).values())
        if not self._mesh.divides_variables:
            return
        for position, variable in enumerate(self._state_variables):
            self._is_divided[position] = is_divided(self._shardings[position], variable.shape)
            self._is_shared[position] = self._is_divided[position]
            variable._layout = self._shardings[position]  # of whatever is assigned to it from now on
            variable.assign(variable.value)

    def keeps_placement(self, kind: str, fits: bool, wanted: bool) -> bool:
        """Returns whether data lives on the device; on a GPU that is part of the program, so a run keeps it."""
        if self._certifier is None:
            return wanted
        before = self._certifier.programs.on_device(kind)
        if before and not fits:
            text = "the %s data no longer fits on the device, where this run has kept it, so the bits may differ"
            logger.warning(text, kind)
        on_device = wanted if before is None else before and fits
        self._certifier.programs.decide_on_device(kind, on_device)
        return on_device

    def reuse(self) -> bool:
        """Moves the certified programs to those of another run, if they are known in the same way there."""
        programs = current_programs()
        if self._certifier is not None:
            if not self._certifier.programs.agrees_with(programs):
                return False
            self._certifier.move_to(programs)
        return True

    def release(self) -> None:
        """Drops copies of the state, which the Keras objects hold."""
        self._values, self._shown, self._pushed = ([None] * len(self._state_variables) for _ in range(3))
        self._logs = {}
        self._pending.clear()

    def _pure(self, fn: Callable[..., Any]) -> Callable[..., tuple[list, Any]]:
        """Turns stateful Keras code into a function of the state."""

        def pure(values: list, *args: Any) -> tuple[list, Any]:
            with self._steps.guarded(), ChainedScope(list(zip(self._state_variables, values, strict=True))) as scope:
                result = fn(*args)
                return [scope.get_current_value(variable) for variable in self._state_variables], result

        return pure

    def _loop(self, kind: str, step: Callable[[Batch], Any]) -> Callable[[list, Any], tuple[list, Any, Any]]:
        """Returns a function that runs a step on every batch of a block, and then reads the logs of the window.

        It also returns what a single step returned. The Python code of a step runs once
        for each shape of its batch, not again for each length of a call: JAX keeps what it has traced (`inline`: the
        programs are the same as without it).
        """
        run_step = jax.jit(self._divided_after(self._pure(step)), inline=True)
        read = jax.jit(self._pure(self._read_values), static_argnums=1, inline=True)

        def many(values: list, block: Any) -> tuple[list, Any, Any]:
            self.compilations += self._certifier is None  # else `_run_steps` counts, as one however often it is lowered
            outputs = None
            items, batch_of = (
                (block.rows, self._gather(block.arrays)) if isinstance(block, PlacedRows) else (block, _same)
            )
            if isinstance(items, PartlyFilled):

                def step_of(number: Any, state: list) -> list:
                    item = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, 0, False), items.data)
                    return run_step(state, batch_of(item))[0]

                values = jax.lax.fori_loop(0, items.count, step_of, values)
            elif nest.flatten(items)[0].shape[0] == 1:
                values, outputs = run_step(values, batch_of(nest.map_leaves(lambda leaf: leaf[0], items)))
            else:
                values, _ = jax.lax.scan(lambda state, item: (run_step(state, batch_of(item))[0], None), values, items)
            return values, read(values, kind)[1], outputs

        return many

    def _divided_after(self, step: Callable[..., tuple[list, Any]]) -> Callable[..., tuple[list, Any]]:
        """Returns a step after which each device has its parts of the divided variables, also between two steps."""
        if not any(self._is_divided):
            return step

        def divided(values: list, batch: Any) -> tuple[list, Any]:
            values, outputs = step(values, batch)
            for position, has_parts in enumerate(self._is_divided):
                if has_parts:
                    values[position] = jax.lax.with_sharding_constraint(values[position], self._shardings[position])
            return values, outputs

        return divided

    def _gather(self, arrays: Any) -> Callable[[Any], Batch]:
        """Returns a function that gathers the batch with these rows, inside the compiled loop."""

        def gathered(rows: Any) -> Batch:
            batch = nest.map_leaves(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), arrays)
            # The barrier keeps the step the program that it is for batches of the host, and so its bits.
            return jax.lax.optimization_barrier(self._mesh.share_traced(batch))

        return gathered

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, block: Block, single: bool = False) -> Any:
        """Places the rows of this process of all batches of a block."""
        if single or self.loop_lengths != "any":
            return self._mesh.share(nest.map_leaves(on_host, block.data), block.batch_size)
        batch_bytes = sum(leaf.nbytes for leaf in nest.flatten(block.data)) // block.count
        room = max(block.count, most_steps(batch_bytes))
        return PartlyFilled(
            jax.device_put(nest.map_leaves(lambda leaf: _with_room(leaf, room), block.data)), block.count
        )

    def place_whole(self, arrays: Any) -> Any:
        """Places whole arrays on every device."""
        return self._mesh.replicate(nest.map_leaves(on_host, arrays))

    def assemble(self, parts: SparseArray | RaggedArray) -> Any:
        """Returns a sparse tensor."""
        if isinstance(parts, RaggedArray):
            return super().assemble(parts)
        return BCOO((parts.values, parts.indices), shape=parts.like.shape[1:], indices_sorted=True)

    def run(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the compiled steps of a piece; returns while the device computes."""
        placed = self._single_step(piece) if self._steps.returns_outputs(kind) else piece.placed
        with _explained_lowering():
            self._values, logs, leaves = self._run_steps(kind, self._values, placed)
        self._logs = {kind: logs}
        self._await_earlier_calls(logs)
        return [(np.asarray(leaf),) for leaf in leaves or []]

    def _await_earlier_calls(self, logs: list[Any]) -> None:
        """Waits until no more than `IN_FLIGHT` calls are in flight, the one that returns `logs` included."""
        self._pending.append(logs)
        while len(self._pending) > IN_FLIGHT:
            jax.block_until_ready(self._pending.popleft())

    def _single_step(self, piece: Piece) -> Any:
        """Returns what is placed of a single batch, for the program that returns the outputs of one step."""
        placed = piece.placed
        if isinstance(placed, PartlyFilled):
            return self.place(piece.block, single=True)
        if isinstance(placed, PlacedRows) and isinstance(placed.rows, PartlyFilled):
            return PlacedRows(placed.arrays, self.place(piece.block, single=True))
        return placed

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        while self._pending:
            jax.block_until_ready(self._pending.popleft())

    def read(self, kind: str) -> Callable[[], Logs]:
        """Returns a function that waits for the steps dispatched so far, and returns their logs."""
        names, values = self._read_window(kind)
        return lambda: floats(dict(zip(names, jax.device_get(values[: len(names)]), strict=True)))

    def read_finite_steps(self, count: keras.Variable) -> Callable[[], float]:
        """Returns a function that waits for the steps dispatched so far, and returns the count."""
        _, values = self._read_window("train")  # the count is the last value of the compiled call
        return lambda: float(jax.device_get(values[-1]))

    def _read_window(self, kind: str) -> tuple[list[str], list[Any]]:
        """Returns the names of the logs of a window, and their values on the device."""
        if kind not in self._logs:
            self._logs[kind] = self._read_all(self._values, kind)[1]
        return self._names[kind], self._logs[kind]

    def _read_values(self, kind: str) -> list[Any]:
        """Returns the values of the logs without their names, which a compiled function would return sorted."""
        logs = self._steps.read(kind)
        self._names[kind] = list(logs)
        watched = self._steps.windows[kind].finite_steps
        return [*logs.values(), *([] if watched is None else [keras.ops.convert_to_tensor(watched.count)])]

    def reset(self, kind: str, window: WindowSums) -> None:
        """Opens the next window."""
        if kind not in self._zeros:
            with ChainedScope(list(zip(self._state_variables, self._values, strict=True))) as scope:
                window.reset()
                new = {
                    i: scope.get_current_value(v)
                    for i, v in enumerate(self._state_variables)
                    if id(v) in scope.assigned
                }
            self._zeros[kind] = {i: np.array(value) for i, value in new.items()}
        for position, value in self._zeros[kind].items():
            self._values[position] = self._on_devices_of_all(value)
        self._logs = {}

    def _on_devices_of_all(self, value: Any) -> Any:
        """Returns a value of the host as an array of the mesh, where JAX would not do that by itself."""
        return self._mesh.copy_to_all(value) if self._mesh.spans_processes else value

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of a training step, from the program that was traced for single steps."""
        block = nest.map_leaves(lambda leaf: _abstract(leaf, (1,)), batch)
        before = self.compilations
        try:
            traced = next((function for (kind, _), function in self._functions.items() if kind == "train"), None)
            return flops.of_jax_program((traced or self._function("train")).trace(self._values, block))
        finally:
            self.compilations = before

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of the inference step; traces it."""
        features = nest.map_leaves(_abstract, unpack(batch)[0])
        return flops.of_jax_program(jax.jit(self._pure(self._steps.inference)).trace(self._values, features))

    # -- state -----------------------------------------------------------------------------------------------------

    # On a CPU the engine and the Keras objects share no array: the next call donates the engine's arrays, while NumPy
    # views of those of the Keras objects must stay as they are. On an accelerator, and where variables are divided, two
    # copies of the state may not fit: the Keras objects have the engine's arrays, which are gone after the next call,
    # until `push`. What user code has read from them with NumPy is a copy there.

    def push(self) -> None:
        """Writes the state to the Keras objects, where it or they have changed."""
        changed = [
            position
            for position, variable in enumerate(self._state_variables)
            if self._values[position] is not self._pushed[position] or variable._value is not self._shown[position]
        ]
        divides = self._mesh.divides_variables
        copied = [position for position in changed if not self._is_shared[position]]
        state = [self._values[position] for position in copied]
        copies = _copies(state if divides else [self._mesh.own_copy(value) for value in state])
        values = dict(zip(copied, copies, strict=True))
        for position in changed:
            variable, value = self._state_variables[position], values.get(position, self._values[position])
            if not divides:
                value = self._mesh.copy_to_first(value)
            variable.assign(value)
            self._shown[position], self._pushed[position] = variable.value, self._values[position]

    def pull(self) -> None:
        """Reads the variables that have changed from the Keras objects."""
        changed = [i for i, variable in enumerate(self._state_variables) if variable._value is not self._shown[i]]
        if not changed:
            return
        self._logs = {}
        copied = [position for position in changed if not self._is_shared[position]]
        copies = _copies([self._state_variables[position].value for position in copied])
        for position, value in zip(copied, copies, strict=True):
            self._shown[position] = self._state_variables[position].value
            self._values[position] = self._mesh.copy_to_all(value)
            self._pushed[position] = self._values[position]
        for position in set(changed) - set(copied):  # one by one: there is room for one more copy at a time
            self._replace(position, _copies([self._state_variables[position].value])[0])

    def _replace(self, position: int, value: jax.Array) -> None:
        """Replaces a variable whose array is shared, in the state and in the Keras object."""
        variable = self._state_variables[position]
        variable.assign(value)
        self._values[position] = self._pushed[position] = self._shown[position] = variable.value

    def assign(self, variable: keras.Variable, key: str, value: np.ndarray | StoredArray) -> None:
        """Assigns a value of the host to a Keras object."""
        position = self._positions[key]
        if self._is_divided[position]:  # each device gets its part from the host
            self._replace(position, _in_parts(value, variable.dtype, self._shardings[position]))
        else:
            super().assign(variable, key, value)

    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the values of some variables; where they are divided over processes, all of them must call it."""
        if self.is_spread:
            return {key: on_every_host(self._values[self._positions[key]]) for key in keys}
        values = jax.device_get([self._values[self._positions[key]] for key in keys])
        return {key: np.asarray(value) for key, value in zip(keys, values, strict=True)}

    def get_own_parts(self, keys: Sequence[str]) -> Mapping[str, np.ndarray | ArrayParts]:
        """Returns what `get` does, but of what is divided only the parts of this process."""
        if not self.is_spread:
            return self.get(keys)
        values = {key: self._values[self._positions[key]] for key in keys}
        return {key: own_parts(value) for key, value in values.items()}

    def copy(self, keys: Sequence[str], into: OwnState | None = None) -> OwnState:
        """Returns copies of variables; of many on a GPU in a few transfers to pinned memory."""
        if self._copies_together:
            copies, values = self._together(keys)
            if copies is not None and (copied := copies.copy(values)) is not None:
                return {key: states.own(value, copy=False) for key, value in copied.items()}
        return super().copy(keys, into)

    def prepare_copies(self, keys: Sequence[str]) -> None:
        """Compiles what copies these variables in a few transfers, in the background."""
        if self._copies_together and (copies := self._together(keys)[0]) is not None:
            copies.prepare()

    def non_finite(self, keys: Sequence[str], state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity; a GPU looks for them itself."""
        if self._copies_together:
            copies, values = self._together(keys)
            if copies is not None and copies.are_finite(values):
                return []
        return super().non_finite(keys, state)

    @property
    def _copies_together(self) -> bool:
        return jax.default_backend() == "gpu" and self._mesh.is_one_device

    def _together(self, keys: Sequence[str]) -> tuple[HostCopies | None, dict[str, jax.Array]]:
        """Returns what copies these variables together, None if that does not pay off, and their values."""
        values = {key: self._values[self._positions[key]] for key in keys}
        values = {key: one if isinstance(one, jax.Array) else jax.device_put(one) for key, one in values.items()}
        if tuple(keys) not in self._host_copies:
            self._host_copies[tuple(keys)] = HostCopies(values) if HostCopies.pays_off(values) else None
        return self._host_copies[tuple(keys)], values

    def checksums(self, keys: Sequence[str]) -> dict[str, int]:
        """Returns checksums that the devices compute; see `Engine.checksums`."""
        if jax.default_backend() == "cpu" and not self.is_spread:  # in memory of the host already
            return super().checksums(keys)
        sums = {key: _checksum(self._values[self._positions[key]]) for key in keys}
        return {key: int(self._mesh.own_copy(value)) for key, value in sums.items()}

    @property
    def is_spread(self) -> bool:
        """Whether variables are divided over several processes: to read one, all of them must take part."""
        return self._mesh.spans_processes and any(self._is_divided)

    @contextlib.contextmanager
    def whole_model(self, others: Sequence[keras.Variable] = ()) -> Iterator[None]:
        """Inside the block this process can use the Keras model alone; see `Engine.whole_model`."""
        if not self.is_spread:
            yield
            return
        model = [variable for key, variable in self._steps.variables.items() if key.startswith(states.EVALUATED)]
        before = [(variable, variable._value, variable._layout) for variable in (*model, *others)]
        try:
            for variable, value, _ in before:
                variable._layout = None
                variable._value = self._mesh.copy_to_first(on_every_host(value))
            yield
        finally:
            for variable, value, layout in before:
                variable._value, variable._layout = value, layout

    def exchange(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Swaps the values of the two variables of each pair."""
        for first, second in pairs:  # the references are swapped, nothing is copied
            one, other = self._positions[first], self._positions[second]
            self._values[one], self._values[other] = self._values[other], self._values[one]
        self._logs = {}

    def set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""
        for key in keys:
            position, value = self._positions[key], values[key]
            if self._is_divided[position]:
                self._values[position] = self._mesh.put(value, self._shardings[position])
            else:
                self._values[position] = self._on_devices_of_all(value)
        self._logs = {}


@contextlib.contextmanager
def _explained_lowering() -> Iterator[None]:
    """Explains errors of steps that JAX cannot compile for this device."""
    try:
        yield
    except ValueError as error:
        if "is not supported by dot_general on CPU" not in str(error):
            raise
        raise UsageError(
            "attention in float16 does not run on JAX on a CPU",
            key="runtime.mixed_precision_dtype",
            remedy="use bfloat16 or float32, a GPU, or another backend",
        ) from error


def _copies(values: list[Any]) -> list[jax.Array]:
    """Returns copies that share no memory with the values; unlike `jax.numpy.array`, this compiles nothing.

    One call for all of them: a call takes much longer than a copy of a small array.
    """
    if any(isinstance(value, jax.Array) and not value.is_fully_addressable for value in values):
        return [_copy_own_parts(value) for value in values]
    copied: list[jax.Array] = jax.device_put(values, may_alias=False) if values else []
    return copied


def _copy_own_parts(value: Any) -> jax.Array:
    """Returns a copy of an array of several processes, each of which copies the parts on its devices."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return _copies([value])[0]
    parts = _copies([shard.data for shard in value.addressable_shards])
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, parts)


def _in_parts(value: np.ndarray | StoredArray, dtype: str, sharding: NamedSharding) -> jax.Array:
    """Returns an array of which every process reads and places the parts of its own devices."""
    read = value.__getitem__ if isinstance(value, np.ndarray) else value.read
    return jax.make_array_from_callback(value.shape, sharding, lambda place: read(place).astype(dtype))


def _with_room(leaf: np.ndarray, room: int) -> np.ndarray:
    """Returns an array whose first axis has `room` entries, and begins with those of `leaf`.

    Only what is filled takes memory: the system provides a page when it is written.
    """
    filled = on_host(leaf)
    dtype = jax.dtypes.canonicalize_dtype(filled.dtype)
    if len(filled) == room and filled.dtype == dtype:
        return filled
    whole = aligned((room, *filled.shape[1:]), dtype)
    whole[: len(filled)] = filled
    return whole


@jax.jit
def _checksum(value: jax.Array) -> jax.Array:
    """Returns the sum of an array's bits, each number multiplied by an odd one that depends on its place.

    Shapes do not change: the parts of a divided array stay where they are.
    """
    numbers = value.astype("uint8") if value.dtype == bool else value
    bits = jax.lax.bitcast_convert_type(numbers, {1: "uint8", 2: "uint16"}.get(numbers.dtype.itemsize, "uint32"))
    place = jax.numpy.zeros((), "uint32")
    for axis, length in enumerate(bits.shape):
        place = place * length + jax.lax.broadcasted_iota("uint32", bits.shape, axis)
    return jax.numpy.sum(bits.astype("uint32") * (2 * place + 1), dtype="uint32")


def _same(batch: Any) -> Any:
    return batch


def _steps_of(block: Any) -> int:
    """Returns how many batches a placed block holds, where their number is part of its shape."""
    items = block.rows if isinstance(block, PlacedRows) else block
    return jax.tree.leaves(items)[0].shape[0]


def _one_of(block: Any, number: int) -> Any:
    """Returns one batch of a placed block, as a block of its own."""
    if isinstance(block, PlacedRows):
        return PlacedRows(block.arrays, _one_of(block.rows, number))
    return jax.tree.map(
        lambda leaf: jax.device_put(jax.lax.dynamic_slice_in_dim(leaf, number, 1), leaf.sharding), block
    )


def _uses(jaxpr: Any, primitive: str) -> bool:
    """Returns whether a program has an operation, also in the programs that its operations call."""
    for equation in jaxpr.eqns:
        values = [value if isinstance(value, list | tuple) else [value] for value in equation.params.values()]
        inner = [getattr(item, "jaxpr", item) for item in itertools.chain(*values)]
        if equation.primitive.name == primitive or any(_uses(one, primitive) for one in inner if hasattr(one, "eqns")):
            return True
    return False


def _labels(jaxpr: Any, batch: Batch) -> Any:
    """Returns the input of the program that holds the labels of a batch; None if they are not one array."""
    features, labels, _ = unpack(batch)
    if not isinstance(labels, np.ndarray):
        return None
    return jaxpr.invars[len(jax.tree.leaves(features))]


def _source(jaxpr: Any, variable: Any) -> Any:
    """Returns the variable that this one was made from by changes of type and shape only."""
    producers = {id(out): equation for equation in jaxpr.eqns for out in equation.outvars}
    unchanging = {"convert_element_type", "copy", "reshape", "squeeze", "_squeeze", "_reshape"}
    while id(variable) in producers:
        equation = producers[id(variable)]
        if not {equation.primitive.name, equation.params.get("name")} & unchanging:
            break
        variable = equation.invars[0]
    return variable


def _abstract(leaf: Any, before: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    """Returns the shape and type of an array, with further axes in front."""
    array = on_host(leaf)
    return jax.ShapeDtypeStruct((*before, *array.shape), jax.dtypes.canonicalize_dtype(array.dtype))
