"""A user's own `tf.data.Dataset`; also the one place that imports TensorFlow for reading data.

The second half of this file inspects a pipeline: which of its parts draw numbers that a resumed run cannot reproduce.
TensorFlow has no documented API for that. Python keeps the parts that a dataset was built from, with their seeds and
functions, and a function's graph names its operations. If TensorFlow shows less than expected, less is found; a
deterministic pipeline is never reported as not deterministic.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from everstep.data import nest, sparse
from everstep.data.names import class_names, file_names
from everstep.data.stream import Stream, skip
from everstep.errors import UsageError, missing_extra
from everstep.startup_messages import held_back
from everstep.types import Batch


def load_tensorflow(purpose: str) -> Any:
    """Returns the module `tensorflow`, with GPUs hidden from it if another backend trains.

    Args:
      purpose: What needs TensorFlow, for the error if it is not installed.

    Raises:
      UsageError: TensorFlow is not installed.
    """
    try:
        with contextlib.nullcontext() if "tensorflow" in sys.modules else held_back():
            import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow", purpose) from error
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        with contextlib.suppress(RuntimeError):  # TensorFlow is already running on them
            tf.config.set_visible_devices([], "GPU")
    return tf


class TFDataStream(Stream):
    """Batches of a `tf.data.Dataset`, as NumPy arrays.

        stream = TFDataStream(dataset.shuffle(1000, seed=1).batch(32), repeat=True)

    Resuming skips the batches that were used. A dataset that reshuffles at every pass orders pass n by its seed and n,
    so the passes of earlier epochs are created first, without being read (if the dataset caches its shuffled order and
    is finite, the first is read). That is exact for deterministic pipelines: sources that do not change, seeded
    shuffles, stateless maps. A shuffle without a seed is deterministic if the global seed was set before the dataset
    was created, as it is in a task's `build_inputs`. `why_not_exact` names other parts, as far as TensorFlow shows
    them. It does not show what Python code inside the pipeline draws from, as in `from_generator`: that has to yield
    the same samples at every call.

    Args:
      dataset: A batched dataset; it may be infinite.
      repeat: Whether epoch follows epoch without end.
    """

    def __init__(self, dataset: Any, *, repeat: bool = False):
        load_tensorflow("reading a tf.data.Dataset")
        size = int(dataset.cardinality())
        super().__init__(repeat=repeat, batches_per_epoch=size if size >= 0 else None)
        self._dataset = dataset
        self._repeats_itself = size == _INFINITE
        self._passes = 0
        self._live: _Pass | None = None

    @property
    def epoch_never_ends(self) -> bool:
        """Whether the dataset repeats itself, or filters one that does."""
        return is_infinite(self._dataset)

    @property
    def classes(self) -> list[str]:
        """The dataset's `class_names`, which those of `keras.utils.image_dataset_from_directory` and others have."""
        return class_names(self._dataset)

    def sample_ids(self) -> list[str] | None:
        """Returns the dataset's `file_paths`, from the folder that all are in on; None if samples are shuffled."""
        shuffled = any("Shuffle" in type(part).__name__ for part in parts(self._dataset))
        return None if shuffled else file_names(self._dataset)

    @property
    def why_not_exact(self) -> str:
        """What in the pipeline draws numbers that a resumed run cannot reproduce; see `Stream.why_not_exact`."""
        tf = load_tensorflow("reading a tf.data.Dataset")
        one_pass = self._repeats_itself and self.repeat
        return "; ".join(weaknesses(tf, self._dataset, passes=not one_pass))

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; continues the current pass if possible."""
        live = self._live
        if live is not None and not live.broken and live.epoch == epoch and live.batch <= batch:
            skip(live, batch - live.batch, batch)
            return live
        self._live = self._start(epoch, batch)
        return self._live

    def _start(self, epoch: int, batch: int) -> "_Pass":
        if reshuffles(self._dataset):
            self._create_earlier_passes(epoch, batch)
        # One batch less is skipped in the pipeline: reading it proves that the position exists.
        skipped = max(batch - 1, 0)
        rest = self._dataset.skip(skipped)
        live = _Pass(epoch, skipped, iter(rest) if _has_sparse_or_ragged(rest) else rest.as_numpy_iterator())
        self._passes += 1
        skip(live, batch - skipped, batch)
        return live

    def _create_earlier_passes(self, epoch: int, batch: int) -> None:
        """Creates the passes of the epochs before, so that the next one has its epoch's order."""
        if self._passes > epoch and (self.repeat or batch > 0):
            raise UsageError(
                "this tf.data.Dataset reshuffles at every pass and cannot go back to an earlier pass in this process",
                remedy="run again to resume, or use shuffle(…, reshuffle_each_iteration=False), arrays or record files",
            )
        if epoch > 0 and caches(self._dataset) and not is_infinite(self._dataset):
            self._read_first_pass()
        for _ in range(self._passes, epoch):
            iter(self._dataset)
        self._passes = max(self._passes, epoch)

    def _read_first_pass(self) -> None:
        """Reads the first pass to its end: its order is what a cache keeps for all later ones."""
        if self._passes == 0:
            self._live = self._start(0, 0)
        if self._live is not None and self._live.epoch == 0:
            for _ in self._live:
                pass


class _Pass(Iterator[Batch]):
    """One pass over a dataset, which counts the epoch's batches."""

    def __init__(self, epoch: int, batch: int, batches: Iterator[Batch]):
        self.epoch, self.batch, self.broken = epoch, batch, False
        self._batches = batches

    def __next__(self) -> Batch:
        try:
            value = next(self._batches)
        except StopIteration:
            raise
        except BaseException:
            self.broken = True  # TensorFlow would continue after the batch that failed
            raise
        self.batch += 1
        return nest.map_leaves(sparse.on_host, value)


def _has_sparse_or_ragged(dataset: Any) -> bool:
    """Whether elements hold sparse or ragged tensors, which `as_numpy_iterator` would convert differently."""
    tf = load_tensorflow("reading a tf.data.Dataset")
    return any(not isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec))


def is_unbatched(dataset: Any) -> bool:
    """Whether the dataset has a component without an axis: then it yields samples, not batches."""
    tf = load_tensorflow("reading a tf.data.Dataset")
    specs = tf.nest.flatten(dataset.element_spec)
    return any(getattr(spec, "shape", None) is not None and spec.shape.rank == 0 for spec in specs)


# -- inspecting a pipeline ---------------------------------------------------------------------------------------------

_GENERATOR = {"RngReadAndSkip", "StatefulUniform", "StatefulUniformFullInt", "StatefulStandardNormalV2"}
_SEED_INPUTS = {"ShuffleDataset": 2, "ShuffleAndRepeatDataset": 2, "RandomDataset": 0}
"""The position of the first of two seeds among the inputs of a dataset operation, the same in all its versions."""

_INFINITE, _UNKNOWN = -1, -2
"""TensorFlow's values for a cardinality that is not a number."""

_WHO_SHUFFLES = "a shuffle (Dataset.shuffle, list_files)"
_WHO_CHOOSES = "a random choice (Dataset.random, sample_from_datasets)"
_UNSEEDED = (
    "{who} has no seed, so each run draws other numbers: give it a seed, or call keras.utils.set_random_seed "
    "before the dataset is created"
)
_CARRIED_STATE = (
    "a function draws from a tf.random.Generator or a Keras layer, whose state is lost after the first pass: put "
    "the layer into the model, or use tf.random.stateless_…"
)
_PARALLEL_DRAWS = (
    "random numbers in a parallel function come in an undefined order: remove num_parallel_calls, or use "
    "tf.random.stateless_…"
)
_UNORDERED = "deterministic=False lets samples come in an undefined order: remove it"


def parts(dataset: Any) -> list[Any]:
    """Returns the dataset and all datasets it was built from, as far as TensorFlow shows them; each part once."""
    by_id: dict[int, Any] = {}
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        if id(part) not in by_id:
            by_id[id(part)] = part
            waiting += getattr(part, "_inputs", list)()
    return list(by_id.values())


def reshuffles(dataset: Any) -> bool:
    """Whether every pass over the dataset draws a new order, from its seed and the number of the pass."""
    names = ("_reshuffle_each_iteration", "_rerandomize")
    return any(getattr(part, name, False) for part in parts(dataset) for name in names)


def caches(dataset: Any) -> bool:
    """Whether later passes reuse what the first pass read."""
    return any("Cache" in type(part).__name__ for part in parts(dataset))


def is_infinite(dataset: Any) -> bool:
    """Whether a pass over the dataset never ends: it repeats without end, or filters a dataset that does."""
    size = int(dataset.cardinality())
    if size != _UNKNOWN:
        return size == _INFINITE
    inputs: list[Any] = getattr(dataset, "_inputs", list)()
    kind = type(dataset).__name__
    if "Take" in kind or not inputs:
        return False
    return (all if "Zip" in kind else any)(map(is_infinite, inputs))


def weaknesses(tf: Any, dataset: Any, *, passes: bool) -> list[str]:
    """Returns why the dataset may yield other samples in another process, each reason with its remedy.

    Args:
      tf: The module `tensorflow`.
      dataset: The dataset.
      passes: Whether it is read more than once.
    """
    pipeline = parts(dataset)
    deterministic = _is_op_determinism_enabled()
    reasons = [text for part in pipeline for text in _weaknesses_of(tf, part, passes, deterministic)]
    if not deterministic and any(_is_unordered(tf, part, dataset.options().deterministic) for part in pipeline):
        reasons.append(_UNORDERED)
    return list(dict.fromkeys(reasons))


def _weaknesses_of(tf: Any, part: Any, passes: bool, deterministic: bool) -> Iterator[str]:
    drawn = [draws(tf, graph) for graph in _graphs(part)]
    who = _unseeded_part(tf, part) or next((each.unseeded for each in drawn if each.unseeded), "")
    if who:
        yield _UNSEEDED.format(who=who)
    if passes and any(each.carried for each in drawn):
        yield _CARRIED_STATE
    if not deterministic and _is_parallel(tf, part) and any(each.seeded or each.carried for each in drawn):
        yield _PARALLEL_DRAWS


class Draws(NamedTuple):
    """How a function draws random numbers, other than by stateless operations.

    Attributes:
      unseeded: Which operation draws without a seed; empty if none does.
      seeded: Whether operations with a seed draw; they start again with every pass.
      carried: Whether numbers follow from a state that outlives a pass.
    """

    unseeded: str
    seeded: bool
    carried: bool


def draws(tf: Any, graph: Any) -> Draws:
    """Returns how a function's graph, with all it calls, draws random numbers."""
    definition = graph.as_graph_def()
    scopes = [definition.node, *(function.node_def for function in definition.library.function)]
    kinds = {_kind(tf, node) for scope in scopes for node in scope}
    unseeded = sorted(who for scope in scopes for node in scope if (who := _unseeded_node(tf, node, scope)))
    counted = {"assigns", "stateless"} <= kinds  # a Keras layer counts its draws in a variable, which is the seed
    return Draws("".join(unseeded[:1]), "seeded" in kinds, counted or "carried" in kinds)


def _kind(tf: Any, node: Any) -> str:
    if node.op in _GENERATOR:
        return "carried"
    if node.op.startswith("StatelessRandom"):
        return "stateless"
    if node.op == "AssignVariableOp" and tf.as_dtype(node.attr["dtype"].type).is_integer:
        return "assigns"
    return "seeded" if any(_seeds(node)) else ""


def _seeds(node: Any) -> list[int]:
    """Returns the two seeds of an operation that draws numbers; empty for other operations."""
    names = ("seed", "seed2")
    return [node.attr[name].i for name in names] if all(name in node.attr for name in names) else []


def _unseeded_node(tf: Any, node: Any, scope: Iterable[Any]) -> str:
    """Returns the description of an operation in a function that draws without a seed; empty for others."""
    if seeds := _seeds(node):
        return "" if any(seeds) else f"{node.op} in a function"
    first = _SEED_INPUTS.get(node.op.rstrip("V0123456789"))
    if first is None:
        return ""
    values = {other.name: other.attr["value"].tensor for other in scope if other.op == "Const"}
    inputs = [name.split(":")[0] for name in node.input]
    known = [tf.make_ndarray(values[name]).item() if name in values else None for name in inputs]
    if first == 0:
        return _who(known[0], known[1], None)
    return "" if known[1] is None else _who(known[first], known[first + 1], known[1])


def _unseeded_part(tf: Any, part: Any) -> str:
    """Returns the description of a part that draws without a seed; empty for others."""
    values = [getattr(part, name, None) for name in ("_seed", "_seed2", "_buffer_size")]
    return _who(*(None if value is None else tf.get_static_value(value) for value in values))


def _who(seed: Any = None, seed2: Any = None, size: Any = None) -> str:
    """Describes what has these seeds if it is unseeded: both are 0. A shuffle has a size; of 1, it does nothing."""
    if seed is None or seed2 is None or seed or seed2 or size == 1:
        return ""
    return _WHO_CHOOSES if size is None else _WHO_SHUFFLES


def _graphs(part: Any) -> list[Any]:
    """Returns the graphs of the functions that a part calls."""
    wrappers: list[Any] = getattr(part, "_functions", list)()
    return [wrapper.function.graph for wrapper in wrappers if hasattr(getattr(wrapper, "function", None), "graph")]


def _is_parallel(tf: Any, part: Any) -> bool:
    calls = [getattr(part, name, None) for name in ("_num_parallel_calls", "_num_parallel_reads")]
    return any(tf.get_static_value(tf.convert_to_tensor(n)) not in (None, 1) for n in calls if n is not None)


def _is_unordered(tf: Any, part: Any, deterministic: bool | None) -> bool:
    own = getattr(part, "_deterministic", "default")
    return _is_parallel(tf, part) and (own == "false" or (own == "default" and deterministic is False))


def _is_op_determinism_enabled() -> bool:
    """Whether TensorFlow's op determinism is on, which overrides `deterministic=False`; True if unknown."""
    try:
        config = importlib.import_module("tensorflow.python.framework.config")
        return bool(config.is_op_determinism_enabled())
    except (ImportError, AttributeError):
        return True
