"""From `config/` to `FlowSettings`: base files, local ones over them, overrides over both.

A task's block is laid over those of the classes it inherits from, each with its base file, its local file and the
overrides that name it. References, `${Mnist_A.epoch}` or `${.epoch}` for one in the same block, are answered at the
end, in the whole tree: blocks, `catalog` and `optimizer`. References inside `catalog.yaml` are its own business.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.config import ConfigError, Layer, Problem, apply_layers, dialect, sources
from everstep.config.checking import field_types
from everstep.config.layer import last_setter, walk
from everstep.errors import UsageError
from everstep.flow.catalog_tree import read_catalog
from everstep.flow.checking import check_blocks, check_overrides, check_values
from everstep.flow.params import Params
from everstep.flow.settings import DEFAULTS, FlowSettings
from everstep.optim.config import OptimizationConfig

FILES = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")
"""The files of a config directory, and of the folder `local` in it."""


def compose(
    config: Path, chain: Sequence[str], tasks: Iterable[str], overrides: Iterable[str] = (), experiment: str = ""
) -> FlowSettings:
    """Returns what a task runs with.

    Args:
      config: The config directory.
      chain: The task's name, then those of the classes it inherits from.
      tasks: The names of all tasks of the project.
      overrides: `Mnist_B.epoch=1`, `optimizer.optimizer.type=sgd`, `catalog.mnist.raw=…`, `+Mnist_B.new=1`,
        `~Mnist_B.old`, `experiment=NAME`.
      experiment: The experiment on MLflow where no file names one.

    Raises:
      UsageError: A file cannot be read; or everything wrong in the values, each with its key, its file and line.
    """
    _refuse_other_files(config / "local")
    found = sources.read(_existing(config, "parameters.yaml"), overrides)
    files, given = found.files, found.overrides
    check_blocks(files, found.header, tasks)
    check_overrides(files, given, chain, tasks)
    catalog_files = _existing(config, "catalog.yaml")
    catalog, edited = read_catalog(catalog_files, given)
    layers = [
        *_optimizer_files(config),
        *_referred(catalog, files, given),
        *_shared(files, chain[0]),
        *_own(files, given, chain),
        *_rest(given, chain),
    ]
    layers = [_spelled_out(layer) for layer in layers]
    tree = apply_layers(Params({chain[0]: dict(DEFAULTS)}), layers)
    params = getattr(tree, chain[0])
    check_values(params, chain[0], layers)
    params.lock()
    return FlowSettings(
        task=chain[0],
        chain=tuple(chain),
        params=params,
        catalog=catalog,
        optimizer=_optimizer(tree, layers),
        has_optimizer_file=any("optimizer" in layer.tree for layer in layers),
        experiment=_experiment(found.header["experiment"], given) or experiment,
        catalog_files=tuple(catalog_files),
        catalog_edited=edited,
    )


def _existing(config: Path, name: str) -> list[Path]:
    return [path for path in (config / name, config / "local" / name) if path.is_file()]


def _refuse_other_files(local: Path) -> None:
    """Refuses a local file that nobody reads."""
    for path in sorted(local.glob("*.y*ml")) if local.is_dir() else ():
        if path.name not in FILES:
            raise UsageError(f"{path} is read by nobody: the files of a config directory are {', '.join(FILES)}")


def _optimizer_files(config: Path) -> Iterator[Layer]:
    for path in _existing(config, "optimizer.yaml"):
        layer = Layer.from_file(path)
        lines = {f"optimizer.{key}": line for key, line in layer.lines.items()}
        yield Layer(layer.origin, {"optimizer": dict(layer.tree)}, lines, "add")


def _spelled_out(layer: Layer) -> Layer:
    """Returns a layer whose optimizer, where it is written flat as Keras's arguments are, is spelled out.

    `{name: sgd, momentum: 0.9, learning_rate: 0.05}` is `{optimizer: {type: sgd, sgd: {momentum: 0.9}}, …}`.
    """
    flat = layer.tree.get("optimizer")
    if not isinstance(flat, Mapping) or not isinstance(flat.get("name"), str) or "optimizer" in flat:
        return layer
    kind = flat["name"].lower()
    own = [key for key in flat if key != "name" and key not in field_types(OptimizationConfig)]
    places = {"name": "optimizer.type", **{key: f"optimizer.{kind}.{key}" for key in own}}
    chosen = {"type": kind, **({kind: {key: flat[key] for key in own}} if own else {})}
    rest = {key: value for key, value in flat.items() if key not in places}
    lines = dict(layer.lines)
    for key, place in places.items():
        lines |= _moved(layer.lines, f"optimizer.{key}", f"optimizer.{place}")
    return dataclasses.replace(layer, tree={**layer.tree, "optimizer": {"optimizer": chosen, **rest}}, lines=lines)


def _referred(catalog: Mapping[str, Any], files: Iterable[Layer], given: Iterable[Layer]) -> Iterator[Layer]:
    """Yields the catalog where a value points into it: `${catalog.mnist.raw.filepath}`."""
    values = [value for layer in (*files, *given) for _, value in walk(layer.tree)]
    if any("${catalog" in str(value) for value in values):
        yield Layer("catalog.yaml", {"catalog": dialect.escaped(_public(catalog))}, edit="add")


def _public(tree: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in tree.items() if not str(key).startswith("_")}
    return {key: _public(value) if isinstance(value, Mapping) else value for key, value in shown.items()}


def _shared(files: Iterable[Layer], target: str) -> Iterator[Layer]:
    """Yields what references may point at: all of `parameters.yaml` but the task's own block, which comes later."""
    for layer in files:
        yield dataclasses.replace(layer, tree=_without(layer.tree, target), edit="add")


def _own(files: Sequence[Layer], given: Sequence[Layer], chain: Sequence[str]) -> Iterator[Layer]:
    """Yields the blocks along the chain, the base's first, as values of the task."""
    for source in reversed(chain):
        for layer in files:
            yield from _block(dataclasses.replace(layer, edit="add"), source, chain[0])
        for layer in given:
            yield from _block(layer, source, chain[0])


def _block(layer: Layer, source: str, target: str) -> Iterator[Layer]:
    """Yields a block as the target's; what it says of the optimizer goes over `optimizer.yaml`."""
    tree = layer.tree.get(source)
    if not isinstance(tree, Mapping):
        return
    if "optimizer" in tree and isinstance(tree["optimizer"], Mapping):
        lines = _moved(layer.lines, f"{source}.optimizer", "optimizer")
        yield Layer(layer.origin, {"optimizer": tree["optimizer"]}, lines, "add")
        tree = _without(tree, "optimizer")
    if tree:
        yield Layer(layer.origin, {target: tree}, _moved(layer.lines, source, target), layer.edit)


def _moved(lines: Mapping[str, int], source: str, target: str) -> dict[str, int]:
    inside = {key: line for key, line in lines.items() if key == source or key.startswith((f"{source}.", f"{source}["))}
    return {f"{target}{key[len(source) :]}": line for key, line in inside.items()}


def _rest(given: Iterable[Layer], chain: Sequence[str]) -> Iterator[Layer]:
    """Yields overrides of everything but the task's own block; what is checked elsewhere is not checked again.

    Those of the optimizer are checked by its types, those of blocks along the chain as values of the task.
    """
    for layer in given:
        elsewhere = (chain[0], "experiment", "catalog")
        tree = {key: value for key, value in layer.tree.items() if key not in elsewhere}
        checked = bool({"optimizer", *chain} & set(tree))
        if tree and not (checked and layer.edit == "drop"):
            yield dataclasses.replace(layer, tree=tree, edit="add" if checked else layer.edit)


def _without(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != name}


def _optimizer(tree: Params, layers: Sequence[Layer]) -> OptimizationConfig:
    config = OptimizationConfig()
    try:
        config.override(tree.optimizer.as_dict() if "optimizer" in tree else {})
        config.validate()
    except ConfigError as error:
        raise ConfigError([_placed(problem.under("optimizer"), layers) for problem in error.problems]) from None
    return config


def _placed(problem: Problem, layers: Sequence[Layer]) -> Problem:
    setter = last_setter(layers, problem.path)
    return dataclasses.replace(problem, origin=setter.origin_of(problem.path)) if setter else problem


def _experiment(said: Sequence[tuple[Any, str]], given: Iterable[Layer]) -> str:
    """Returns the experiment that files or, winning, an override name; empty where none does."""
    named = [*(name for name, _ in said), *(layer.tree["experiment"] for layer in given if "experiment" in layer.tree)]
    if named and not (isinstance(named[-1], str) and named[-1]):
        raise UsageError(f"experiment: received {named[-1]!r}, expected the name of an experiment on MLflow")
    return str(named[-1]) if named else ""
