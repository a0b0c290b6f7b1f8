"""What a `tf.data` pipeline is made of, and which of its parts draw numbers that a resumed run cannot draw again.

TensorFlow has no documented way to ask. Python keeps the parts a dataset was made from, with their seeds and
functions, and a function's graph names its operations. Where TensorFlow tells less than expected, less is found;
nothing here says of a deterministic pipeline that it is not.
"""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_GENERATOR = {"RngReadAndSkip", "StatefulUniform", "StatefulUniformFullInt", "StatefulStandardNormalV2"}
_SEED_INPUTS = {"ShuffleDataset": 2, "ShuffleAndRepeatDataset": 2, "RandomDataset": 0}
"""Where the two seeds stand among the inputs of an operation that makes a dataset, whatever its version."""

_INFINITE, _UNKNOWN = -1, -2
"""What TensorFlow says of a dataset's length where it is no number."""

_WHO_SHUFFLES = "a shuffle (Dataset.shuffle, list_files)"
_WHO_CHOOSES = "a random choice (Dataset.random, sample_from_datasets)"
_UNSEEDED = (
    "{who} has no seed, so each start draws other numbers: give it a seed, or call keras.utils.set_random_seed "
    "before the dataset is made"
)
_CARRIED = (
    "a function draws from a tf.random.Generator or a Keras layer, whose state is lost after the first pass: put "
    "the layer into the model, or use tf.random.stateless_…"
)
_RACING = (
    "random numbers in a parallel function come in an order of chance: leave num_parallel_calls out, or use "
    "tf.random.stateless_…"
)
_UNORDERED = "deterministic=False lets samples come in an order of chance: leave it out"


def parts(dataset: Any) -> list[Any]:
    """Returns the dataset and all it was made from, as far as TensorFlow tells; each part once."""
    found: dict[int, Any] = {}
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            waiting += getattr(part, "_inputs", list)()
    return list(found.values())


def reshuffles(dataset: Any) -> bool:
    """Whether every pass over the dataset draws anew, from its seed and the number of the pass."""
    names = ("_reshuffle_each_iteration", "_rerandomize")
    return any(getattr(part, name, False) for part in parts(dataset) for name in names)


def caches(dataset: Any) -> bool:
    """Whether what the first pass read is kept for the later ones."""
    return any("Cache" in type(part).__name__ for part in parts(dataset))


def has_no_end(dataset: Any) -> bool:
    """Whether a pass over the dataset cannot be read to its end: it repeats for ever, or what it filters does."""
    size = int(dataset.cardinality())
    behind = [dataset] if size != _UNKNOWN else parts(dataset)
    return any(int(part.cardinality()) == _INFINITE for part in behind)


def weaknesses(tf: Any, dataset: Any, *, passes: bool) -> list[str]:
    """Returns what keeps the dataset from giving the same samples in another process, each with its remedy.

    Args:
      tf: The module `tensorflow`.
      dataset: The dataset.
      passes: Whether it is read more than once.
    """
    pipeline = parts(dataset)
    orderly = _is_orderly()
    found = [text for part in pipeline for text in _weaknesses_of(tf, part, passes, orderly)]
    if not orderly and any(_is_unordered(tf, part, dataset.options().deterministic) for part in pipeline):
        found.append(_UNORDERED)
    return list(dict.fromkeys(found))


def _weaknesses_of(tf: Any, part: Any, passes: bool, orderly: bool) -> Iterator[str]:
    drawn = [draws(tf, graph) for graph in _graphs(part)]
    who = _unseeded_part(tf, part) or next((each.unseeded for each in drawn if each.unseeded), "")
    if who:
        yield _UNSEEDED.format(who=who)
    if passes and any(each.carried for each in drawn):
        yield _CARRIED
    if not orderly and _is_parallel(tf, part) and any(each.seeded or each.carried for each in drawn):
        yield _RACING


class Draws(NamedTuple):
    """How a function draws random numbers; those of stateless operations do not count.

    Attributes:
      unseeded: What draws without a seed, empty if nothing does.
      seeded: Whether operations with a seed do, which start anew with every pass.
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
    counted = {"assigns", "stateless"} <= kinds  # a Keras layer counts in a variable, and draws by the count
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
    """Returns the two seeds of an operation that draws numbers; of another, nothing."""
    names = ("seed", "seed2")
    return [node.attr[name].i for name in names] if all(name in node.attr for name in names) else []


def _unseeded_node(tf: Any, node: Any, scope: Iterable[Any]) -> str:
    """Returns what an operation inside a function is called if it draws without a seed, or its dataset will."""
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
    """Returns what a part is called if it draws without a seed."""
    values = [getattr(part, name, None) for name in ("_seed", "_seed2", "_buffer_size")]
    return _who(*(None if value is None else tf.get_static_value(value) for value in values))


def _who(seed: Any = None, seed2: Any = None, size: Any = None) -> str:
    """Names what has these seeds if they are none: both 0. A shuffle has a size, and in a buffer of 1 does nothing."""
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


def _is_orderly() -> bool:
    """Whether TensorFlow was told to be deterministic: it then ignores what would let chance in; True if unknown."""
    try:
        config = importlib.import_module("tensorflow.python.framework.config")
        return bool(config.is_op_determinism_enabled())
    except (ImportError, AttributeError):
        return True
