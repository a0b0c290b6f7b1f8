"""Stable keys for every variable of a run.

Keras paths are not stable: a second model in one process is `sequential_1/dense_3`, the path of a seed generator does
not name its owner, and two optimizers or metrics may share a name. A key here is a role (`model`, `optimizer`,
`metrics.train`, `task.<attribute>`, `model.<attribute>`, `others`, …) and the path below it, with the numbers that
Keras added counted again per role. A variable whose key is taken, such as that of the same metric on two outputs, gets
a number appended, in the order in which the owner holds them. The same program gives the same keys in every process and
on every backend.
"""

import functools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from everstep.data import nest
from everstep.errors import UsageError
from everstep.keras_internals import to_snake_case
from everstep.task.optim import held_optimizers, parts_of, set_names
from everstep.types import ArrayParts, StoredArray, StoredState

logger = logging.getLogger(__name__)

_OTHERS = "others"

EVALUATED = ("model/", "model.", "task.", f"{_OTHERS}/")
"""The beginnings of the keys that an evaluation needs: the model, its attributes, those of the task, and others."""

_NORMS = "window.train/norms/"

Owners = Mapping[str, Any]
"""The holders of variables by role: Keras objects, Variables, or lists and dicts of them."""


def collect(
    owners: Owners, used: Iterable[keras.Variable] = (), with_others: bool = False
) -> dict[str, keras.Variable]:
    """Returns every variable of the owners by key, each once, in a stable order.

    A variable that two owners hold belongs to the first: a model that the task also keeps as an attribute stays
    under `model`.

    Args:
      owners: The holders of variables, by role.
      used: Variables that steps use. Those that a layer of the model keeps outside its weights, such as the state of
        a stateful RNN, are added to the model's.
      with_others: Whether those that no object holds, such as the variable of a loss, are included as `others/…`.
    """
    keyed: dict[str, keras.Variable] = {}
    names: dict[int, str] = {}
    roles = {role: _Role(role, keyed, names) for role in owners}
    for role, owner in owners.items():
        roles[role].add(owner)
    strays = {id(variable): variable for variable in used if id(variable) not in names}
    model = owners.get("model")
    if strays and isinstance(model, keras.Layer):
        roles["model"].add_kept(model, strays)
    if with_others:
        others = _Role(_OTHERS, keyed, names)
        for variable in strays.values():
            others.add(variable, re.sub(r"^variable_\d+$", "variable", variable.name))
    return keyed


def task_owners(task: Any) -> dict[str, Any]:
    """Returns the attributes of a task that hold variables, by role `task.<attribute>`."""
    found = {f"task.{name}": value for name, value in sorted(vars(task).items())}
    return {role: value for role, value in found.items() if holds_variables(value)}


def model_owners(model: keras.Model, used: Iterable[keras.Variable] = ()) -> dict[str, Any]:
    """Returns the attributes of a model that hold variables beside its layers, by role `model.<attribute>`.

    These are mainly optimizers, which Keras does not track as parts of a model. `optimizer` and attributes with a
    leading underscore belong to Keras: they are part of the state only if steps use what they hold.

    Args:
      model: The model whose attributes are searched.
      used: The variables that steps use.
    """
    ids = {id(variable) for variable in used}

    def counts(name: str, value: Any) -> bool:
        if name.startswith("_self_"):  # TensorFlow's bookkeeping of the other attributes
            return False
        if name.startswith("_") or name == "optimizer":
            return any(id(variable) in ids for variable in _all_variables(value))
        return holds_variables(value)

    return {f"model.{name}": value for name, value in sorted(vars(model).items()) if counts(name, value)}


def frozen(keyed: Mapping[str, keras.Variable], assigned: Collection[int]) -> list[str]:
    """Returns the keys of the variables that no step changes: not trainable, and not assigned by a traced step.

    Statistics of batch normalization are assigned. Random generators never count as frozen: they may draw outside of
    steps.

    Args:
      keyed: All variables by key.
      assigned: The ids of those that steps assign.
    """
    return [
        key
        for key, variable in keyed.items()
        if key.startswith(EVALUATED)
        and not variable.trainable
        and id(variable) not in assigned
        and variable.name != "seed_generator_state"
    ]


def check_base(base: Mapping[str, Any], variables: int, digest: Callable[[], str]) -> None:
    """Requires that a model was built with the weights that a checkpoint does not contain.

    Args:
      base: What the checkpoint knows of them: `name`, `digest`, `variables`.
      variables: How many of the model's variables are not in the checkpoint.
      digest: Returns the digest of these variables.

    Raises:
      UsageError: The model was built with others.
    """
    here = digest() if variables == base["variables"] else f"{variables} variables instead of {base['variables']}"
    if here != base["digest"]:
        raise UsageError(
            f"the run was trained on other frozen weights, with the digest {base['digest']}; the model is now built "
            f"with {here}",
            key="base weights",
            received=base["name"],
            remedy="provide the weights that the run was started with, or start a new run in another directory",
        )


def canonical(value: np.ndarray, into: np.ndarray | None = None, narrow: bool = False, copy: bool = True) -> np.ndarray:
    """Returns a copy in the stored form: integers as int64 (their width differs between backends).

    Args:
      value: The array; it may be a view of the device's memory.
      into: An array that is no longer needed. Its memory is reused if it fits: the system provides new memory page by
        page, which takes longer than the copy.
      narrow: Whether integers of 8 bits stay what they are: all backends have them.
      copy: Whether the memory of the array may change; otherwise it is returned itself if it has the stored form.
    """
    dtype = value.dtype if narrow and value.dtype.itemsize == 1 else _stored_dtype(value.dtype)
    if not copy and value.dtype == dtype:
        return value
    if into is None or (into.shape, into.dtype) != (value.shape, dtype):
        into = np.empty(value.shape, dtype)
    np.copyto(into, value, casting="unsafe")
    return into


def own(
    value: np.ndarray | ArrayParts,
    into: np.ndarray | ArrayParts | None = None,
    narrow: bool = False,
    copy: bool = True,
) -> np.ndarray | ArrayParts:
    """Returns a copy in the stored form, of an array or of the parts of one; see `canonical`."""
    if isinstance(value, ArrayParts):
        memory = dict(into.parts) if isinstance(into, ArrayParts) else {}
        parts = [(start, canonical(part, memory.get(start), narrow, copy)) for start, part in value.parts]
        return ArrayParts(value.shape, canonical(np.empty(0, value.dtype), narrow=narrow).dtype, parts)
    return canonical(value, into if isinstance(into, np.ndarray) else None, narrow, copy)


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int64) if dtype.kind in "iu" else dtype


def checked(expected: Mapping[str, keras.Variable], given: StoredState) -> StoredState:
    """Returns a state that fits the expected variables; attempts of a run may differ in whether they measure norms.

    Raises:
      UsageError: Keys are missing or unexpected, or shapes or dtypes differ; lists all differences.
    """
    given = {key: value for key, value in given.items() if key in expected or not key.startswith(_NORMS)}
    zero = np.zeros((), "float32")
    given = {**given, **{key: zero for key in expected if key.startswith(_NORMS) and key not in given}}
    wrong = [f"missing: {key}" for key in expected if key not in given]
    wrong += [f"unexpected: {key}" for key in given if key not in expected]
    for key, variable in expected.items():
        if key in given:
            wrong += _mismatch(key, variable, given[key])
    if not wrong:
        return given
    listed = "\n  ".join(wrong[:40]) + (f"\n  … and {len(wrong) - 40} more" if len(wrong) > 40 else "")
    metrics = _changed_metrics(expected, given)
    if metrics:
        raise UsageError(
            f"the metrics are not those that the run was started with: {metrics} ({len(wrong)} differences); their "
            "sums are part of what is saved",
            remedy=f"resume with the same metrics, or start a new run in another directory\n  {listed}",
        )
    raise UsageError(
        f"the state does not fit this experiment ({len(wrong)} differences)",
        remedy="resume with the model, optimizer and metrics that the run was started with, or start a new run in "
        f"another directory\n  {listed}",
    )


def _changed_metrics(expected: Iterable[str], given: Iterable[str]) -> str:
    """Returns the metrics that were added and removed; empty if other parts of the state have changed, too."""
    new, gone = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if not new + gone or not all(key.startswith(("metrics.", "window.")) for key in new + gone):
        return ""
    parts = []
    for word, keys in (("new", new), ("gone", gone)):
        names = sorted({key.split("/")[1] for key in keys if key.startswith("metrics.")})
        parts += [f"{word}: {', '.join(names)}"] if names else []
    return "; ".join(parts)


def check_held(keyed: Mapping[str, keras.Variable], used: Iterable[keras.Variable]) -> None:
    """Refuses variables that a step uses and no object holds: they would neither be trained nor saved.

    Raises:
      UsageError: There is one; the remedy says where to keep it.
    """
    held = {id(variable) for variable in keyed.values()}
    strays = sorted({variable.path for variable in used if id(variable) not in held})
    if strays:
        raise UsageError(
            f"a step uses variables that neither the model, the optimizer, the metrics nor the task's attributes hold: "
            f"{', '.join(strays)}",
            remedy="keep them in attributes of the task, or of the model where the step is its own, and pass seeds "
            "(seed=self.seed) to keras.random",
        )


def warn_of_untrained(keyed: Mapping[str, keras.Variable]) -> None:
    """Warns of variables that could be trained, but that the model does not hold."""
    names = [variable.path for key, variable in keyed.items() if key.startswith(f"{_OTHERS}/") and variable.trainable]
    if names:
        logger.warning("not trained, since the model does not hold it: %s", ", ".join(names))


def _mismatch(key: str, variable: keras.Variable, value: np.ndarray | StoredArray) -> list[str]:
    if tuple(value.shape) != tuple(variable.shape):
        return [f"shape of {key}: here {tuple(variable.shape)}, given {tuple(value.shape)}"]
    here, there = _kind(variable.dtype), _kind(value.dtype.name)
    return [] if here == there else [f"dtype of {key}: here {variable.dtype}, given {value.dtype.name}"]


def _kind(dtype: str) -> str:
    return "integer" if re.match(r"u?int\d", dtype) else dtype


def holds_variables(value: Any) -> bool:
    """Returns whether a value is an owner of variables, or a list or dict with one."""
    if isinstance(value, Mapping):
        return any(holds_variables(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(holds_variables(v) for v in value)
    return isinstance(value, keras.Variable | keras.random.SeedGenerator) or hasattr(value, "variables")


def _all_variables(value: Any) -> list[keras.Variable]:
    """Returns the variables of an owner, or of those in lists and dicts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [variable for item in value for variable in _all_variables(item)]
    return _variables(value)


def name_variables(task: Any, model: keras.Model, optimizer: Any) -> None:
    """Passes stable names of variables to all optimizers of a run, which may select variables by name.

    The name of a variable of the model is its key in a checkpoint without `model/`, such as `encoder/layer_norm/bias`;
    that of a variable in an attribute of the task is the whole key: `task.critic/dense/kernel`.
    """

    def names() -> dict[int, str]:
        keyed = collect({"model": model, **task_owners(task)})
        return {id(variable): key.removeprefix("model/") for key, variable in keyed.items()}

    for holder in held_optimizers(optimizer, task, model):
        set_names(holder, names)


class _Role:
    """The keys below one role."""

    def __init__(self, role: str, keyed: dict[str, keras.Variable], names: dict[int, str]) -> None:
        self.role = role
        self.keyed = keyed
        self.names = names  # id of a variable -> its key
        self.numbers: dict[tuple[str, str], dict[str, str]] = {}
        self._appended: dict[str, int] = {}  # key -> the last number that was appended to it
        self._automatic: dict[int, set[str]] = {}  # id of an owner -> automatic names of its parts
        self.held: dict[int, set[int]] = {}  # the ids of the variables of each optimizer, by its id
        self.targets: dict[int, dict[str, keras.Variable]] = {}  # of each optimizer, by its id

    def add(self, owner: Any, below: str = "") -> None:
        """Adds an owner's variables; lists and dicts are walked in order."""
        if isinstance(owner, Mapping):
            for name in sorted(owner, key=str):
                self.add(owner[name], f"{below}{name}/")
        elif isinstance(owner, list | tuple) and owner and all(isinstance(o, keras.Metric) for o in owner):
            for metric in owner:
                self.add(metric, below)
        elif isinstance(owner, list | tuple):
            for index, item in enumerate(owner):
                self.add(item, f"{below}{index}/")
        else:
            self._add_object(owner, below)

    def _add_object(self, owner: Any, below: str) -> None:
        for variable in _variables(owner):
            if id(variable) not in self.names:
                self._add_variable(variable, f"{self.role}/{below}{self._path(owner, variable)}")

    def add_kept(self, model: keras.Layer, wanted: Mapping[int, keras.Variable]) -> None:
        """Adds those of the wanted variables that a layer of the model keeps in an attribute."""
        for layer in model._flatten_layers():
            for _, value in sorted(vars(layer).items()):
                for leaf in nest.flatten([value]):
                    if isinstance(leaf, keras.Variable) and id(leaf) in wanted and id(leaf) not in self.names:
                        self._add_variable(leaf, f"{self.role}/{self._path(model, leaf)}")

    def _add_variable(self, variable: keras.Variable, key: str) -> None:
        """Adds a variable, numbered if its key is taken: slots of Adafactor, the same metric on two outputs."""
        name = key = key.rstrip("/")
        number = self._appended.get(key, 0)  # those up to it are taken
        while name in self.keyed:
            number += 1
            name = f"{key}_{number}"
        self._appended[key] = number
        self.keyed[name] = variable
        self.names[id(variable)] = name

    def _path(self, owner: Any, variable: keras.Variable) -> str:
        if isinstance(owner, keras.Optimizer):
            return self._slot_path(owner, variable)
        if isinstance(owner, keras.Variable):
            return ""
        if isinstance(owner, keras.random.SeedGenerator):
            return "seed"
        parts = variable.path.split("/")
        if len(parts) > 1 and parts[0] == owner.name and not isinstance(owner, keras.Metric):
            parts = parts[1:]
        if id(owner) not in self._automatic:
            self._automatic[id(owner)] = _automatic_names(owner)
        return self._renumber(parts, self._automatic[id(owner)])

    def _slot_path(self, optimizer: keras.Optimizer, variable: keras.Variable) -> str:
        """Names a slot after its variable; Keras's name, `adam/sequential_1_dense_3_kernel_momentum`, is not stable."""
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None and id(variable) in self._held_by(inner):
            return f"inner/{self._slot_path(inner, variable)}"
        targets = self._targets(optimizer)
        for number, part in enumerate(parts_of(optimizer)):
            if id(variable) in self._held_by(part):
                return f"{number}/{self._slot_path(part, variable)}"
        # The longest path that the slot's name begins with.
        for end in range(len(variable.name) - 1, 0, -1):
            target = targets.get(variable.name[:end]) if variable.name[end] == "_" else None
            if target is not None:
                served = self.names.get(id(target), target.path)
                return f"{served}/{variable.name[end + 1 :]}"
        return variable.name

    def _held_by(self, optimizer: keras.Optimizer) -> set[int]:
        """Returns the ids of an optimizer's variables."""
        if id(optimizer) not in self.held:
            self.held[id(optimizer)] = {id(variable) for variable in optimizer.variables}
        return self.held[id(optimizer)]

    def _targets(self, optimizer: keras.Optimizer) -> dict[str, keras.Variable]:
        """Returns the variables that an optimizer updates, by the beginning of their slots' names."""
        if id(optimizer) not in self.targets:
            found: dict[str, keras.Variable] = {}
            for target in optimizer._trainable_variables:
                if isinstance(target, keras.Variable):
                    found.setdefault(target.path.replace("/", "_"), target)
            self.targets[id(optimizer)] = found
        return self.targets[id(optimizer)]

    def _renumber(self, parts: list[str], automatic: set[str]) -> str:
        """Replaces the numbers of automatic names by their order of appearance below the same parent."""
        done = ""
        for part in parts:
            base = re.sub(r"_\d+$", "", part)
            if base in automatic:
                seen = self.numbers.setdefault((done, base), {})
                part = seen.setdefault(part, base if not seen else f"{base}_{len(seen)}")
            done = f"{done}/{part}" if done else part
        return done


def _variables(owner: Any) -> list[keras.Variable]:
    if isinstance(owner, keras.Variable):
        return [owner]
    if isinstance(owner, keras.random.SeedGenerator):
        return [owner.state]
    return [variable for variable in getattr(owner, "variables", []) if isinstance(variable, keras.Variable)]


def _automatic_names(owner: Any) -> set[str]:
    """Returns the names, without numbers, that Keras gives to the parts of an owner by default."""
    parts: Iterable[Any] = [owner]
    if isinstance(owner, keras.Layer):
        parts = owner._flatten_layers(include_self=True, recursive=True)
    elif isinstance(owner, keras.Metric):
        parts = [owner, *getattr(owner, "metrics", [])]
    return {_default_name(type(part).__name__) for part in parts} | {"seed_generator", "variable", "mean"}


_default_name = functools.cache(to_snake_case)  # a slow search, for each part of each model
