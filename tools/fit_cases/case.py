"""What a case is, and what the files in `cases/` are written with.

A case is a function that builds a compiled model and the arguments of `fit`. It is called anew for each contender, with
the same seeds, so that initial weights and data are the same:

    @case("arguments")
    def validation_split():
        return call(regression(), X, Y, validation_split=0.25)

Many similar ones are a dict of functions, added by `cases`. A case whose results differ, or that is rejected, says so
with the first cell of the row of `docs/reference/fit.md` that explains it:

    @case("data", differs={"jax": "a stateful RNN"})
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

BACKENDS = ("jax", "tensorflow", "torch")

CALL = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
"""The arguments of a call, unless the case has others."""


@dataclasses.dataclass
class Call:
    """One call of `fit`.

    Attributes:
      model: The compiled model.
      args: Its data.
      kwargs: Its other arguments.
      seen: What callbacks, steps or the data noted; compared as well.
      before: Called with `fit` before the call that is timed and compared, such as an earlier call.
    """

    model: keras.Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seen: list[Any] = dataclasses.field(default_factory=list)
    before: Callable[[Callable[..., Any]], Any] = lambda fit: None


@dataclasses.dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
      group: What it is about, such as `losses`.
      name: Its name within the group.
      build: Returns the call.
      backends: Where it can be run.
      differs: By backend, the row of the page that explains other results, or a refusal.
    """

    group: str
    name: str
    build: Callable[[], Call]
    backends: Sequence[str] = BACKENDS
    differs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Group and name."""
        return f"{self.group}: {self.name}"


CASES: dict[str, Case] = {}
"""All cases by title, in the order in which they are declared."""


def add(case: Case) -> None:
    """Adds a case."""
    if case.title in CASES:
        raise ValueError(f"there are two cases {case.title!r}")
    CASES[case.title] = case


def case(
    group: str, name: str = "", *, backends: Sequence[str] = BACKENDS, differs: str | Mapping[str, str] = ""
) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Adds the decorated function as a case, by default with its own name.

    Args:
      group: What it is about.
      name: Its name.
      backends: Where it can be run.
      differs: The row of the page that explains other results, for every backend or by backend.
    """

    def decorate(build: Callable[[], Call]) -> Callable[[], Call]:
        known = dict.fromkeys(backends, differs) if isinstance(differs, str) else dict(differs)
        title = name or build.__name__.strip("_").replace("_", " ")
        add(Case(group, title, build, tuple(backends), {on: row for on, row in known.items() if row}))
        return build

    return decorate


def cases(
    group: str,
    builds: Mapping[str, Callable[[], Call]],
    *,
    backends: Sequence[str] = BACKENDS,
    differs: str | Mapping[str, str] = "",
) -> None:
    """Adds several cases by name; the other arguments are those of `case`."""
    for name, build in builds.items():
        case(group, name, backends=backends, differs=differs)(build)


def call(model: keras.Model, *args: Any, seen: list[Any] | None = None, **kwargs: Any) -> Call:
    """Returns a call with the arguments that cases have by default."""
    return Call(model, args, {**CALL, **kwargs}, [] if seen is None else seen)


def call_of_batches(model: keras.Model, data: Any, seen: list[Any] | None = None, **kwargs: Any) -> Call:
    """Returns a call with data that has its own batches."""
    return call(model, data, seen=seen, **{"batch_size": None, **kwargs})


# -- data and models of cases ------------------------------------------------------------------------------------------


def numbers(*shape: int) -> np.ndarray:
    """Returns random numbers; the same for the same shape."""
    return np.random.default_rng(list(shape)).normal(size=shape).astype("float32")


def labels(count: int, classes: int) -> np.ndarray:
    """Returns random class numbers."""
    return np.random.default_rng([count, classes]).integers(0, classes, count).astype("int32")


def tokens(count: int, length: int, words: int) -> np.ndarray:
    """Returns random words from 1 on, followed by zeros: at least one word each."""
    random = np.random.default_rng([count, length, words])
    lengths = random.integers(1, length + 1, count)
    drawn = random.integers(1, words, (count, length))
    return np.where(np.arange(length) < lengths[:, None], drawn, 0).astype("int32")


SAMPLES, WIDTH, CLASSES = 40, 4, 3
X, Y, LABELS = numbers(SAMPLES, WIDTH), numbers(SAMPLES, 1), labels(SAMPLES, CLASSES)
X_TEST, Y_TEST, LABELS_TEST = numbers(12, WIDTH), numbers(12, 1), labels(12, CLASSES)
ONE_HOT = np.eye(CLASSES, dtype="float32")[LABELS]
BINARY = (LABELS > 0).astype("float32")[:, None]


def stack(shape: tuple[int | None, ...], *layers: Any, dtype: str | None = None) -> keras.Sequential:
    """Returns layers on an input."""
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def compiled(model: keras.Model, optimizer: Any = "adam", loss: Any = "mse", **kwargs: Any) -> keras.Model:
    """Compiles a model, and returns it."""
    model.compile(optimizer, loss, **kwargs)
    return model


def regression(optimizer: Any = "adam", loss: Any = "mse", units: int = 1, **kwargs: Any) -> keras.Model:
    """Returns a compiled network from X to Y."""
    hidden = keras.layers.Dense(8, "tanh")
    return compiled(stack((WIDTH,), hidden, keras.layers.Dense(units)), optimizer, loss, **kwargs)


def classifier(optimizer: Any = "adam", metrics: Any = ("accuracy",), **kwargs: Any) -> keras.Model:
    """Returns a compiled network from X to LABELS."""
    network = stack((WIDTH,), keras.layers.Dense(8, "relu"), keras.layers.Dense(CLASSES, "softmax"))
    return compiled(network, optimizer, "sparse_categorical_crossentropy", metrics=list(metrics), **kwargs)
