"""What is swept: an experiment, a task of flows, a run of components or a function; and how one trial of it starts.

A trial is the ordinary command in a process of its own, in a run directory of its own. The same command again resumes
it, which is all that a worker has to know.
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from everstep import storage
from everstep.config import apply_layers, dialect, get_exp_config, merge_trees, nested, override_layers, validate, walk
from everstep.errors import UsageError, nearest
from everstep.experiment_config import as_experiment
from everstep.run import read, results_file
from everstep.sweeps.function import RESULT
from everstep.sweeps.space import Space, Values

TargetKind = Literal["experiment", "flow", "components", "function"]
Check = Callable[[Values], None]
"""Raises UsageError if the configuration does not take these values."""

_METRICS = {"experiment": "validation_loss", "flow": "", "components": "val_loss", "function": "value"}


@dataclasses.dataclass(frozen=True)
class Target:
    """What is swept.

    Attributes:
      kind: What it is.
      name: An experiment, a task, the run that trials are copies of, or `module:function`.
      words: Options and fixed values of the command.
      root: The working directory of trials; of components and flows, the project.
    """

    kind: TargetKind
    name: str
    words: tuple[str, ...] = ()
    root: str = ""

    def run_dir(self, directory: Path, number: int) -> Path:
        """Returns the run directory of a trial; components' runs are beside the sweep, in the project's `runs/`."""
        if self.kind == "components":
            return Path(self.root) / "runs" / f"{directory.name}-{number}"
        return directory / "trials" / str(number)

    def prepare(self, directory: Path, run_dir: Path, number: int, space: Space, values: Values) -> None:
        """Creates what the command of a trial needs: the config file of a run of components."""
        if self.kind != "components":
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        text = dialect.dump(component_config(self.root, self.name, {**space.fixed, **values}))
        path = run_dir / "config.yaml"
        if not path.is_file() or path.read_text("utf-8") != text:
            storage.write_text(path, text)
        link = directory / "trials" / str(number)
        link.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.relpath(run_dir, link.parent), link, target_is_directory=True)

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command of a trial.

        Args:
          run_dir: The trial's run directory.
          space: The space, whose fixed values are set as well.
          values: The trial's values.
          longer: Values that win over all others, to train it longer.
        """
        everstep, overrides = [sys.executable, "-m", "everstep"], [*space.words(values), *longer]
        if self.kind == "experiment":
            return [*everstep, "train", self.name, *self.words, "--model-dir", str(run_dir), *overrides]
        if self.kind == "flow":
            return [*everstep, "flow", self.name, *self.words, "--model-dir", str(run_dir), *overrides]
        if self.kind == "components":
            return [*everstep, "run", run_dir.name, "--project-root", self.root, *self.words]
        return [sys.executable, "-m", "everstep.sweeps.function", self.name, str(run_dir), *overrides]

    def is_complete(self, run_dir: Path) -> bool:
        """Returns whether a trial has nothing left to do: its process ended before its result was stored."""
        if self.kind == "components":
            return results_file(run_dir) is not None
        if self.kind == "function":
            return (run_dir / RESULT).is_file()
        with contextlib.suppress(UsageError, KeyError, TypeError):
            record = read(run_dir)
            complete = record.get("flow", {}).get("complete", True) if self.kind == "flow" else True
            return record["status"] == "finished" and complete
        return False

    @property
    def metric(self) -> str:
        """The metric that is optimised where none is named; empty: the first of `live.USUAL` that a trial logs."""
        return _METRICS[self.kind]

    def as_dict(self) -> dict[str, Any]:
        """Returns it in plain values, for `sweep.json`."""
        return {"kind": self.kind, "name": self.name, "words": list(self.words), "root": self.root}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> "Target":
        """Returns what `as_dict` returned."""
        return cls(tree["kind"], tree["name"], tuple(tree["words"]), tree["root"])


def check_space(space: Space, check: Check) -> None:
    """Tries every value of every key on the configuration, before the first trial.

    With constraints, a combination that violates one is not tried.

    Raises:
      UsageError: The first key or value that the configuration refuses, with where it is written.
    """
    origins = {one.key: one.origin for one in space.dimensions}
    for dimension, values in space.samples():
        if space.broken(values) is not None:
            continue
        try:
            check(values)
        except UsageError as error:
            problem = next((one for one in error.problems if one.key == dimension.key), error.problems[0])
            origin = origins.get(problem.key, problem.origin)
            raise UsageError(dataclasses.replace(problem, origin=origin)) from None


def experiment_check(name: str, words: Sequence[str], space: Space) -> Check:
    """Returns the check of a registered experiment with overrides alone; the command line has one for its options.

    Raises:
      UsageError: There is no such experiment.
    """
    factory = as_experiment(name, get_exp_config(name))

    def check(values: Values) -> None:
        layers = [layer for word in [*words, *space.words(values)] for layer in override_layers(word)]
        validate(apply_layers(factory, layers), layers)

    return check


# -- components --------------------------------------------------------------------------------------------------------

_OLD_NAMES = {"dataset_dir": "data_dir", "model_class": "model_builder_class"}
"""Names in a `hyper_config.yaml`, and what a run's config file calls the same."""

_LISTS = ("training_time_metrics",)
"""Keys of a `hyper_config.yaml` whose value is a list, not a choice of values."""


def component_space(space: Space) -> tuple[Space, str | None]:
    """Returns the space of a `hyper_config.yaml` under a config file's names, and the run it names, if it does."""
    space = space.renamed(_OLD_NAMES)
    fixed = dict(space.fixed) | {one.key: list(one.choices) for one in space.dimensions if one.key in _LISTS}
    name = fixed.pop("run_name", None)
    dimensions = tuple(one for one in space.dimensions if one.key not in _LISTS)
    return Space(dimensions, fixed, space.constraints), None if name is None else str(name)


def component_config(root: str | Path, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of a run of components with other values.

    Raises:
      UsageError: There is no such run, or its config file has no such key.
    """
    from everstep.projects.components import ProjectConfig, find_config

    tree = dialect.load(find_config(Path(root) / "runs" / name).read_text("utf-8")) or {}
    known = {**ProjectConfig().as_dict(), **tree}
    keys = {key for key, _ in walk(known)} | {*known, *_LISTS}
    for key in values:
        if key not in keys:
            remedy = f"{nearest(key, keys)} (a key of your own has to be in the run's config file first)"
            raise UsageError("unknown key", key=key, received=values[key], remedy=remedy)
    return merge_trees(tree, *(nested(key, value) for key, value in values.items()))


def component_check(root: str | Path, name: str, space: Space) -> Check:
    """Returns the check of a run of components: its config file with other values."""

    from everstep.projects.components import load_run_config

    def check(values: Values) -> None:
        tree = component_config(root, name, {**space.fixed, **values})
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder, "config.yaml")
            path.write_text(dialect.dump(tree), "utf-8")
            try:
                load_run_config(path)
            except UsageError as error:
                raise UsageError([dataclasses.replace(one, origin="") for one in error.problems]) from None

    return check


def component_metric(root: str | Path, name: str, space: Space) -> tuple[str, str]:
    """Returns the metric that selects the export of a run of components, and its mode."""
    export = component_config(root, name, space.fixed).get("export") or {}
    return str(export.get("metric", "val_loss")), str(export.get("mode", "min"))
