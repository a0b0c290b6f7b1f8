"""The configuration of a flow: the files of the config directory and the overrides, resolved for one task.

A task's block in `parameters.yaml` is merged over those of the classes it inherits from, each with its base file, its
local file and the overrides that name it. References, `${Mnist_A.epoch}` or `${.epoch}` for one in the same block, are
resolved at the end, in the whole tree: blocks, `catalog` and `optimizer`. `catalog.yaml` refers to its own values.
"""

import copy
import dataclasses
import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from everstep.config import (
    Config,
    Layer,
    apply_layers,
    dialect,
    field_types,
    mistyped_keys,
    read_sources,
    validate,
    walk,
)
from everstep.errors import Problem, UsageError, did_you_mean, nearest, show
from everstep.projects.catalog import Catalog, entries
from everstep.task.optim import OptimizationConfig

FILES = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")
"""The files of a config directory, and of the folder `local` in it."""

_SECTIONS = ("catalog", "optimizer", "experiment")


class MissingParameter(UsageError, AttributeError):
    """A parameter that no block has; `hasattr` and `getattr(…, default)` work as usual."""


class Reads(set[str]):
    """The dotted names of the parameters that code has read; a copy of the parameters notes it in the same place."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reads":
        return self


@dataclasses.dataclass(repr=False, eq=False)
class Params(Config):
    """Values of `parameters.yaml`, nested ones too: `self.params.epoch`, `self.params["epoch"]`."""

    _open = True
    _reads = None  # of `watched` ones, what is read is noted here
    _place = ""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_") and self._reads is not None and name in self.__dict__:
            self._reads.add(f"{self._place}{name}")
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingParameter(f"there is no parameter {name!r}", remedy=nearest(name, self._names()))

    def _require_unlocked(self, name: str) -> None:
        if self._locked:
            raise UsageError(
                "parameters are locked, because they are recorded",
                key=f"params.{self._place}{name}",
                remedy=f"set it in config/parameters.yaml, or on the command line: TASK.{self._place}{name}=…",
            )

    def override(self, override_params: Mapping[str, Any] | Config, is_strict: bool = True) -> None:
        """Merges values into a copy that `replace` returned; parameters of a task are locked."""
        values = override_params.as_dict() if isinstance(override_params, Config) else override_params
        for name in values:
            self._require_unlocked(name)
        super().override(override_params, is_strict)

    def watched(self) -> Self:
        """Returns a copy that notes in `_reads` which of its values are read."""
        copied = copy.deepcopy(self)
        copied._watch(Reads(), "")
        return copied

    def _watch(self, reads: Reads, place: str) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Params):
                value._watch(reads, f"{place}{name}.")
        vars(self).update(_reads=reads, _place=place)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def leaf_of(self, path: str) -> str:
        """Returns the parameter that a dotted name is, or is a part of: what is in a list or a dict is read with it."""
        first, dot, rest = path.partition(".")
        below = vars(self).get(first)
        return f"{first}.{below.leaf_of(rest)}" if dot and isinstance(below, Params) else re.sub(r"\[.*", "", first)


@dataclasses.dataclass(repr=False, eq=False)
class TaskParams(Params):
    """The block of a task: the parameters that the default `run` reads, and whatever else its class reads."""

    _open = True

    epoch: Annotated[int, pydantic.Field(ge=1)] = 1
    """The total number of epochs."""
    batch_size: Annotated[int, pydantic.Field(ge=1)] = 128
    """Samples per step."""
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**32)] = 42
    """Seeds weights, dropout and the order of samples."""
    model_name: Any = None
    """A name for MLflow; the template also selects the model by it."""
    loss: Any = "sparse_categorical_crossentropy"
    """The loss that the model is compiled with."""
    metrics: Any = dataclasses.field(default_factory=lambda: ["accuracy"])
    """The metrics that the model is compiled with."""
    shuffle: bool = True
    """Whether arrays are shuffled in each epoch."""
    validation_split: Annotated[int | float, pydantic.Field(ge=0, lt=1)] = 0.0
    """The last part of the training data, as a share, that is evaluated after each epoch."""

    def _unknown(self, name: str, value: Any) -> Problem:
        problem = super()._unknown(name, value)
        key = optimizer_key(name)
        return dataclasses.replace(problem, remedy=f"write {key}={show(value)}") if key else problem


PARAMETERS = tuple(field.name for field in dataclasses.fields(TaskParams))
"""The parameters that the default `run` reads."""


@dataclasses.dataclass(frozen=True)
class FlowSettings:
    """The resolved configuration of one task.

    Attributes:
      task: The name of its class.
      chain: That name and those of the classes it inherits from, `FlowTask` last.
      params: Its parameters; locked, because they are recorded.
      blocks: All of `parameters.yaml`: `blocks.Mnist_A`; the task's own block is `params`.
      written: The parameters that a file or an override sets and that no other value refers to, with their places.
      misspelt: What is probably the misspelt block of the task, or the experiment.
      catalog: The content of `catalog.yaml`.
      catalog_layers: The files and overrides that it comes from.
      optimizer: The content of `optimizer.yaml`.
      has_optimizer_file: Whether any file or override sets the optimizer.
      experiment: The name of the experiment on MLflow.
    """

    task: str
    chain: tuple[str, ...]
    params: TaskParams
    blocks: Params
    written: Mapping[str, str]
    misspelt: tuple[Problem, ...]
    catalog: Mapping[str, Any]
    catalog_layers: tuple[Layer, ...]
    optimizer: OptimizationConfig
    has_optimizer_file: bool
    experiment: str

    @property
    def shown_chain(self) -> str:
        """The chain as it is printed and logged: `Mnist_B <- Mnist_A <- FlowTask`."""
        return " <- ".join(self.chain)

    def open_catalog(self, root: Path) -> Catalog:
        """Returns the catalog of a project.

        Raises:
          UsageError: All problems in its entries, each with its key, its file and line.
        """
        return Catalog(entries.parse(self.catalog, self.catalog_layers), root)

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it in plain values."""
        return {
            "task": self.task,
            "chain": list(self.chain),
            "experiment": self.experiment,
            "parameters": self.params.as_dict(),
            "catalog": dict(self.catalog),
            "optimizer": self.optimizer.as_dict(),
        }

    def as_yaml(self) -> str:
        """Returns all of it as YAML, without secrets."""
        return dialect.dump_without_secrets(self.as_dict())

    def digest(self, backend: str) -> str:
        """Returns ten characters that differ where the configuration or the backend does; secrets do not count."""
        text = f"{backend}\n{self.as_yaml()}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def compose(
    config: Path, chain: Sequence[str], tasks: Iterable[str], overrides: Iterable[str] = (), experiment: str = ""
) -> FlowSettings:
    """Returns the configuration of a task.

    Args:
      config: The config directory.
      chain: The task's name, then those of the classes it inherits from.
      tasks: The names of all tasks of the project.
      overrides: `Mnist_B.epoch=1`, `optimizer.optimizer.type=sgd`, `catalog.mnist.raw=…`, `+Mnist_B.new=1`,
        `~Mnist_B.old`, `experiment=NAME`.
      experiment: The experiment on MLflow where no file names one.

    Raises:
      UsageError: A file cannot be read; or all problems in the values, each with its key, its file and line.
    """
    task, tasks = chain[0], list(tasks)
    _refuse_other_files(config / "local")
    found = read_sources(_existing(config, "parameters.yaml"), overrides)
    files, given = found.files, found.overrides
    _check_files(files, found.header, tasks)
    _check_overrides(files, given, chain, tasks)
    catalog_layers = [*entries.read_layers(_existing(config, "catalog.yaml"))]
    catalog_layers += _catalog_overrides(given, entries.merge(catalog_layers))
    catalog = entries.merge(catalog_layers)
    layers = [
        *(Layer.from_file(path, "add").moved("", "optimizer") for path in _existing(config, "optimizer.yaml")),
        *_catalog_references(catalog, [*files, *given]),
        *(dataclasses.replace(layer, tree=_without(layer.tree, task), edit="add") for layer in files),
        *_blocks(files, given, chain),
        *_other_overrides(given, chain),
    ]
    layers = [_with_named_optimizer(layer) for layer in layers]
    referenced = _referenced([*layers, *catalog_layers])
    tree = Params()
    tree.override({task: TaskParams(), "optimizer": OptimizationConfig()}, is_strict=False)
    tree = apply_layers(tree, layers)
    validate(tree, layers)
    params, optimizer = getattr(tree, task), tree.optimizer
    named = _experiment(found.header["experiment"], given)
    for name in ("optimizer", "catalog"):
        vars(tree).pop(name, None)
    tree.lock()
    return FlowSettings(
        task=task,
        chain=tuple(chain),
        params=params,
        blocks=tree,
        written=_written(task, layers, referenced),
        misspelt=tuple(_misspelt(files, [*chain[:-1], *([] if named else ["experiment"])], referenced)),
        catalog=catalog,
        catalog_layers=tuple(catalog_layers),
        optimizer=optimizer,
        has_optimizer_file=any("optimizer" in layer.tree for layer in layers),
        experiment=named or experiment,
    )


_REFERENCE = re.compile(r"\$\{([^}:]+)\}")


def _referenced(layers: Iterable[Layer]) -> set[str]:
    """Returns all names in references, as `epoch` in `${.epoch}`."""
    texts = [str(value) for layer in layers for _, value in walk(layer.tree)]
    return {name for text in texts for path in _REFERENCE.findall(text) for name in path.strip(" .").split(".")}


def _written(task: str, layers: Iterable[Layer], referenced: set[str]) -> dict[str, str]:
    """Returns the places of the task's parameters; not of those that other values refer to."""
    found = {}
    for layer in layers:
        block = layer.tree.get(task)
        for key, _ in walk(block) if isinstance(block, Mapping) and layer.edit != "drop" else ():
            if referenced.isdisjoint(key.split(".")):
                found[key] = layer.origin_of(f"{task}.{key}")
    return found


def _misspelt(files: Iterable[Layer], names: Sequence[str], referenced: set[str]) -> Iterator[Problem]:
    """Yields the keys at the top of a file that are probably one of these names, which no file has."""
    files = list(files)
    missing = [name for name in names if not any(name in layer.tree for layer in files)]
    for layer in files:
        for key in map(str, layer.tree):
            if key not in names and key not in referenced and (close := did_you_mean(key, missing, 1, 0.8)):
                reason = "is no task, and no value refers to it, so it changes nothing"
                yield Problem(key, reason, layer.origin_of(key), remedy=close)


def parameter_like(name: str) -> str:
    """Returns the parameter of the default `run` that a name resembles; empty for none."""
    return next(iter(difflib.get_close_matches(name.lower(), PARAMETERS, n=1, cutoff=0.75)), "")


def optimizer_key(name: str) -> str:
    """Returns the key of `optimizer.yaml` that users mean by a name such as `lr`; empty for none.

    `TYPE` in it stands for the type of the optimizer, several of which have such a value.
    """
    name = _OTHER_NAMES.get(name.lower(), name.lower())
    if difflib.get_close_matches(name, ["learning_rate"], cutoff=0.8):
        return "optimizer.learning_rate"
    if name == "optimizer":
        return "optimizer.optimizer.type"
    optimizers = [value for value in vars(OptimizationConfig().optimizer).values() if isinstance(value, Config)]
    return f"optimizer.optimizer.TYPE.{name}" if any(name in each for each in optimizers) else ""


def key_meant(name: str, task: str = "TASK") -> str:
    """Returns the whole key that users mean by a name without its block, such as `epochs` or `lr`; empty for none."""
    parameter = parameter_like(name)
    return f"{task}.{parameter}" if parameter else optimizer_key(name)


_OTHER_NAMES = {
    **dict.fromkeys(("lr", "initial_lr", "base_lr"), "learning_rate"),
    **dict.fromkeys(("optimiser", "optim", "opt"), "optimizer"),
    "weight_decay": "weight_decay_rate",
}
"""Other names of what `config/optimizer.yaml` sets."""


def _existing(config: Path, name: str) -> list[Path]:
    return [path for path in (config / name, config / "local" / name) if path.is_file()]


def _without(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != name}


# -- checks ------------------------------------------------------------------------------------------------------------


def _refuse_other_files(local: Path) -> None:
    """Refuses a local file that would not be read."""
    for path in sorted(local.glob("*.y*ml")) if local.is_dir() else ():
        if path.name not in FILES:
            raise UsageError("would not be read", key=str(path), remedy=f"the files are {', '.join(FILES)}")


def _check_files(files: Sequence[Layer], header: Mapping[str, Sequence[tuple[Any, str]]], tasks: Sequence[str]) -> None:
    """Refuses what would not be read in the files of parameters."""
    problems = [
        Problem(key, "is not a key of a flow", values[-1][1])
        for key, values in header.items()
        if values and key != "experiment"
    ]
    spelled = {name.lower(): name for name in tasks}
    for layer in files:
        wrong: list[Problem] = []
        for name in map(str, layer.tree):
            if name in ("catalog", "optimizer"):
                wrong.append(Problem(name, f"belongs in {name}.yaml"))
            elif name in PARAMETERS:
                where = f"{(tasks or ['Mnist_A'])[0]}.{name}"
                wrong.append(Problem(name, f"belongs in the block of a task, such as {where!r}"))
            elif name not in tasks and name.lower() in spelled:
                wrong.append(Problem(name, "is not a task", remedy=f"did you mean {spelled[name.lower()]!r}?"))
        for name in tasks:
            block = layer.tree.get(name)
            if block is not None and not isinstance(block, Mapping):
                wrong.append(Problem(name, "expected keys with values", received=block))
            elif block:
                wrong += mistyped_keys(layer, PARAMETERS, name)
        problems += layer.located(wrong)
    if problems:
        raise UsageError(problems)


def _check_overrides(
    files: Sequence[Layer], given: Sequence[Layer], chain: Sequence[str], tasks: Sequence[str]
) -> None:
    """Refuses overrides that would change nothing."""
    shared = {str(key) for layer in files for key in layer.tree} - set(tasks)
    known = {*chain[:-1], *_SECTIONS, *shared}
    problems = []
    for layer in given:
        for name, value in layer.tree.items():
            if str(name) in known:
                continue
            if name in tasks:
                reason, remedy = f"the task that runs inherits nothing from it: {' <- '.join(chain)}", ""
            elif parameter_like(str(name)):
                reason, remedy = "is a parameter of a task", f"write {key_meant(str(name), chain[0])}={show(value)}"
            elif meant := optimizer_key(str(name)):
                reason, remedy = "is set for the optimizer", f"write {meant}={show(value)}"
            else:
                reason, remedy = "unknown key", nearest(str(name), known)
            problems.append(Problem(str(name), reason, layer.origin, remedy=remedy))
    if problems:
        raise UsageError(problems)


# -- layers ------------------------------------------------------------------------------------------------------------


def _catalog_overrides(given: Iterable[Layer], tree: Mapping[str, Any]) -> Iterator[Layer]:
    """Yields the overrides of the catalog: names and keys that it has, unless the override adds one."""
    known = dict(walk(tree))
    names = {key.rpartition(".")[0] if key.endswith((".filepath", ".type")) else key for key in known}
    for layer in given:
        if not isinstance(layer.tree.get("catalog"), Mapping):
            continue
        for path, _ in walk(layer.tree["catalog"]):
            exists = any(key == path or key.startswith(f"{path}.") for key in known)
            if layer.edit != "add" and not exists:
                remedy = nearest(path, names)
                raise UsageError(
                    "the catalog has no such name", key=f"catalog.{path}", remedy=remedy, origin=layer.origin
                )
        yield layer.moved("catalog", "")


def _catalog_references(catalog: Mapping[str, Any], layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yields the catalog where a value refers to it: `${catalog.mnist.raw.filepath}`."""
    if any("${catalog" in str(value) for layer in layers for _, value in walk(layer.tree)):
        yield Layer("catalog.yaml", {"catalog": dialect.escaped(_public(catalog))}, edit="add")


def _public(tree: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in tree.items() if not str(key).startswith("_")}
    return {key: _public(value) if isinstance(value, Mapping) else value for key, value in shown.items()}


def _blocks(files: Sequence[Layer], given: Sequence[Layer], chain: Sequence[str]) -> Iterator[Layer]:
    """Yields the blocks along the chain, the base's first, as values of the task; an `optimizer` in them as its own."""
    for source in reversed(chain):
        for layer in [*(dataclasses.replace(layer, edit="add") for layer in files), *given]:
            block = layer.tree.get(source)
            if not isinstance(block, Mapping):
                continue
            if isinstance(block.get("optimizer"), Mapping):
                yield dataclasses.replace(layer.moved(f"{source}.optimizer", "optimizer"), edit="add")
                block = _without(block, "optimizer")
            if block:
                yield dataclasses.replace(layer, tree={source: block}).moved(source, chain[0])


def _other_overrides(given: Iterable[Layer], chain: Sequence[str]) -> Iterator[Layer]:
    """Yields overrides of everything but the task's own block; those of other blocks are checked as the task's."""
    for layer in given:
        tree = {key: value for key, value in layer.tree.items() if key not in (chain[0], "experiment", "catalog")}
        inherited = not set(chain).isdisjoint(tree)
        if tree and not (inherited and layer.edit == "drop"):
            yield dataclasses.replace(layer, tree=tree, edit="add" if inherited else layer.edit)


def _with_named_optimizer(layer: Layer) -> Layer:
    """Returns a layer whose optimizer, where it is written flat as Keras's arguments are, is nested.

    `{name: sgd, momentum: 0.9, learning_rate: 0.05}` is `{optimizer: {type: sgd, sgd: {momentum: 0.9}}, …}`, and a name
    alone is the type.
    """
    flat = layer.tree.get("optimizer")
    flat = {"optimizer": flat} if isinstance(flat, str) else flat  # `optimizer=adam`
    if isinstance(flat, Mapping) and isinstance(flat.get("optimizer"), str):
        nested = {**flat, "optimizer": {"type": flat["optimizer"]}}
        return dataclasses.replace(layer, tree={**layer.tree, "optimizer": nested})
    if not isinstance(flat, Mapping) or not isinstance(flat.get("name"), str) or "optimizer" in flat:
        return layer
    kind = flat["name"].lower()
    own = [key for key in flat if key != "name" and key not in field_types(OptimizationConfig)]
    places = {"name": "optimizer.type", **{key: f"optimizer.{kind}.{key}" for key in own}}
    lines = dict(layer.lines)
    for key, place in places.items():
        lines |= layer.moved(f"optimizer.{key}", f"optimizer.{place}").lines
    chosen = {"type": kind, **({kind: {key: flat[key] for key in own}} if own else {})}
    rest = {key: value for key, value in flat.items() if key not in places}
    return dataclasses.replace(layer, tree={**layer.tree, "optimizer": {"optimizer": chosen, **rest}}, lines=lines)


def _experiment(named: Sequence[tuple[Any, str]], given: Iterable[Layer]) -> str:
    """Returns the experiment that files or, winning, an override name; empty where none does."""
    names = [*(name for name, _ in named), *(layer.tree["experiment"] for layer in given if "experiment" in layer.tree)]
    if names and not (isinstance(names[-1], str) and names[-1]):
        raise UsageError("expected the name of an experiment on MLflow", key="experiment", received=names[-1])
    return str(names[-1]) if names else ""
