"""One case: the call by each contender, and how far their results are from those of `model.fit`."""

import contextlib
import dataclasses
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tools.fit_cases.case import Case
from tools.fit_cases.results import BOTH, CLOSE, FAILED, FIT, KEPT, OTHER, OURS, REFUSED, SAME

import everstep
from everstep.errors import UsageError

CLOSE_ENOUGH = 1e-4
"""The largest difference that is called close; of a value above 1, as a part of it."""

SECONDS = 120
"""A call that takes longer has failed."""


@dataclasses.dataclass
class Outcome:
    """What a call led to: everything that a user could look at afterwards."""

    history: dict[str, Any]
    epochs: list[int]
    weights: list[np.ndarray]
    optimizer: dict[str, np.ndarray]
    seen: list[Any]
    seconds: float


def compare(case: Case) -> dict[str, Any]:
    """Runs a case by all contenders; returns what differs, and the seconds of each call."""
    row: dict[str, Any] = {"group": case.group, "name": case.name, "seconds": {}}
    wanted = _attempt(case, FIT)
    for contender in (OURS, KEPT):
        found = _attempt(case, contender)
        row[contender] = _difference(found, wanted)
        if isinstance(found, Outcome):
            row["seconds"][contender] = round(found.seconds, 3)
    if isinstance(wanted, Outcome):
        row["seconds"][FIT] = round(wanted.seconds, 3)
    else:
        row["error of fit"] = _line(wanted)
    return row


def _attempt(case: Case, contender: str) -> Outcome | Exception:
    with tempfile.TemporaryDirectory(prefix="fit_cases_") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _started_alike(), _time_limit():
                return _run(case, contender, Path(folder) / "run")
        except Exception as error:
            return error


def _run(case: Case, contender: str, directory: Path) -> Outcome:
    fit = keras.Model.fit if contender == FIT else everstep.fit
    call = case.build()
    call.before(fit)
    kept = {"model_dir": directory} if contender == KEPT else {}
    begin = time.perf_counter()
    history = fit(call.model, *call.args, **call.kwargs, **kept)
    seconds = time.perf_counter() - begin
    variables = call.model.optimizer.variables
    optimizer = {variable.path: np.array(keras.ops.convert_to_numpy(variable)) for variable in variables}
    weights = [np.array(weight) for weight in call.model.get_weights()]
    return Outcome(history.history, list(history.epoch), weights, optimizer, call.seen, seconds)


@contextlib.contextmanager
def _started_alike() -> Iterator[None]:
    """Every call begins with the same seeds, names and settings."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    random.seed(1)
    limits = (keras.config.max_epochs(), keras.config.max_steps_per_epoch())
    try:
        yield
    finally:
        keras.config.set_max_epochs(limits[0])
        keras.config.set_max_steps_per_epoch(limits[1])


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 5)  # again and again: Python ignores what a destructor raises
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- differences -------------------------------------------------------------------------------------------------------


def _difference(found: Outcome | Exception, wanted: Outcome | Exception) -> dict[str, Any]:
    """Returns the result of ours, the largest difference of logs and of weights, and the reason in words."""
    if isinstance(found, UsageError):
        return {"result": BOTH if isinstance(wanted, Exception) else REFUSED, "why": _line(found)}
    if isinstance(found, Exception):
        return {"result": FAILED, "why": _line(found)}
    if isinstance(wanted, Exception):
        return {"result": OTHER, "why": "trains where model.fit fails"}
    # Ours may have been built for more variables than its steps change, and some variables have names with numbers.
    for outcome, other in ((found, wanted), (wanted, found)):
        outcome.optimizer = {name: value for name, value in outcome.optimizer.items() if name in other.optimizer}
    why = _other_shape(found, wanted)
    if why:
        return {"result": OTHER, "why": why}
    logs = _largest([found.history, found.seen], [wanted.history, wanted.seen])
    weights = _largest([found.weights, found.optimizer], [wanted.weights, wanted.optimizer])
    largest = max(logs, weights)
    result = SAME if largest == 0 else CLOSE if largest <= CLOSE_ENOUGH else OTHER
    return {"result": result, "logs": logs, "weights": weights}


def _other_shape(found: Outcome, wanted: Outcome) -> str:
    """Returns what is not even of the same kind; empty if only numbers may differ."""
    if found.epochs != wanted.epochs:
        return f"epochs {found.epochs}, not {wanted.epochs}"
    if set(found.history) != set(wanted.history):
        return f"logs {list(found.history)}, not {list(wanted.history)}"
    for name in wanted.history:
        if len(found.history[name]) != len(wanted.history[name]):
            return f"{name} of {len(found.history[name])} epochs, not {len(wanted.history[name])}"
    for what in ("weights", "optimizer", "seen"):
        mine, theirs = (_shapes(getattr(outcome, what)) for outcome in (found, wanted))
        if mine != theirs:
            return f"{what}: {_first_difference(mine, theirs)}"
    return ""


def _shapes(value: Any) -> list[Any]:
    """Returns what is no number, and the shapes of what is, in order."""
    return [leaf if isinstance(leaf, str | None) else np.shape(leaf) for leaf in _leaves(value)]


def _first_difference(mine: list[Any], theirs: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return f"entry {number} is {one}, not {other}"
    return f"{len(mine)} entries, not {len(theirs)}"


def _largest(found: Any, wanted: Any) -> float:
    """Returns the largest difference of two nestings of the same shape; 0.0 if all bits are the same."""
    pairs = zip(_leaves(found), _leaves(wanted), strict=True)
    return max((_distance(one, other) for one, other in pairs if not isinstance(one, str | None)), default=0.0)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield str(key)
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _distance(one: Any, other: Any) -> float:
    one, other = np.asarray(one), np.asarray(other)
    if np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        return 0.0
    one, other = one.astype("float64"), other.astype("float64")
    distance = np.abs(one - other).max() / max(1.0, np.abs(other).max())
    return float(f"{distance:.1e}") if np.isfinite(distance) else float("inf")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
