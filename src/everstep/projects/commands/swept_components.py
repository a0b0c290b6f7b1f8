"""A run of components as a target of `everstep sweep`: trials are copies of it with other values in their config."""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect, merge_trees, nested, parse_override, walk
from everstep.errors import UsageError, nearest
from everstep.projects.components import ProjectConfig, find_config, load_run_config
from everstep.run import results_file
from everstep.sweeps import Check, Space, SweepChoice, Target, TargetRequest, Values, register_target

_OLD_NAMES = {"dataset_dir": "data_dir", "model_class": "model_builder_class"}
"""Names in a `hyper_config.yaml`, and what a run's config file calls the same."""

_LISTS = ("training_time_metrics",)
"""Keys of a `hyper_config.yaml` whose value is a list, not a choice of values."""


@register_target
class ComponentsTarget(Target):
    """A folder in the `runs/` of a project; those of trials are beside it."""

    kind = "components"
    metric = "val_loss"
    cannot_train_longer = "a run of components ends with its export, and is not trained longer"

    @classmethod
    def choose(cls, request: TargetRequest) -> SweepChoice | None:
        """Returns the choice of a folder in `runs/`; a `hyper_config.yaml` may name it."""
        root = request.root
        space, named = component_space(request.space)
        name = request.name or named
        if name is None:
            return None
        if not (root / "runs" / name).is_dir():
            if request.name is None:
                near = nearest(name, cls.names(root))
                raise UsageError("there is no such folder in runs/", key="run_name", received=name, remedy=near)
            return None
        find_config(root / "runs" / name)
        if not space.dimensions:  # a list of metrics is one value
            remedy = "list values in a file, or write key=1,2,3"
            raise UsageError("is empty: no key varies", key="--space", remedy=remedy)
        if request.fixed:
            space = dataclasses.replace(space, fixed={**space.fixed, **dict(map(parse_override, request.fixed))})
        data = ("--data-dir", str(Path(request.data_dir).resolve())) if request.data_dir else ()
        target = cls(name, (*request.backend_words, *data), str(root))
        export = component_config(root, name, space.fixed).get("export") or {}
        metric, mode = str(export.get("metric", cls.metric)), str(export.get("mode", "min"))
        return SweepChoice(target, space, (), component_check(root, name, space), [metric], [mode])

    @classmethod
    def names(cls, root: Path) -> list[str]:
        """Returns the folders in `runs/` with a config file."""
        return [path.name for path in (root / "runs").glob("*") if any(path.glob("*.yaml"))]

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command `everstep run`; the values are in the trial's config file."""
        return [sys.executable, "-m", "everstep", "run", run_dir.name, "--project-root", self.root, *self.words]

    def run_dir(self, directory: Path, number: int) -> Path:
        """Returns the folder of a trial, beside the sweep in the project's `runs/`."""
        return self.home / "runs" / f"{directory.name}-{number}"

    def prepare(self, directory: Path, run_dir: Path, number: int, space: Space, values: Values) -> None:
        """Writes the config file of a trial, and links its folder into the sweep's directory."""
        run_dir.mkdir(parents=True, exist_ok=True)
        text = dialect.dump(component_config(self.root, self.name, {**space.fixed, **values}))
        path = run_dir / "config.yaml"
        if not path.is_file() or path.read_text("utf-8") != text:
            storage.write_text(path, text)
        link = directory / "trials" / str(number)
        link.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.relpath(run_dir, link.parent), link, target_is_directory=True)

    def is_complete(self, run_dir: Path) -> bool:
        """Returns whether a trial has been evaluated."""
        return results_file(run_dir) is not None

    @property
    def home(self) -> Path:
        """The project."""
        return Path(self.root)


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
