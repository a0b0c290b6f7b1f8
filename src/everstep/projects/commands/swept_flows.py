"""A task of a flow as a target of `everstep sweep`, and `everstep flow -m`, which is a sweep of one."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.cli import quiet
from everstep.errors import UsageError
from everstep.projects.flow import PARAMETERS, FlowProject, chain_of, compose
from everstep.sweeps import (
    Space,
    SweepChoice,
    Target,
    TargetRequest,
    Values,
    create_space,
    is_swept,
    register_target,
    sweep_choice,
)


@register_target
class FlowTarget(Target):
    """A task of a flow's project."""

    kind = "flow"
    metric = ""

    @classmethod
    def choose(cls, request: TargetRequest) -> SweepChoice | None:
        """Returns the choice of a task; its parameters may be named without it: `seed=1,2`."""
        home = None if request.name is None else _project(request.root)
        if home is None or request.name not in home.tasks():
            return None
        return flow_choice(request.name, request.space, request.fixed, home, request.backend_words)

    @classmethod
    def names(cls, root: Path) -> list[str]:
        """Returns the tasks of the project."""
        home = _project(root)
        return [] if home is None else list(home.tasks())

    def command(self, run_dir: Path, space: Space, values: Values, longer: Sequence[str] = ()) -> list[str]:
        """Returns the command `everstep flow`."""
        overrides = [*space.words(values), *longer]
        flow = [sys.executable, "-m", "everstep", "flow", self.name]
        return [*flow, *self.words, "--model-dir", str(run_dir), *overrides]

    def is_finished(self, record: Mapping[str, Any]) -> bool:
        """Returns whether a task has ended, too, not its training alone."""
        return super().is_finished(record) and bool(record.get("flow", {}).get("complete", True))

    @property
    def home(self) -> Path:
        """The project."""
        return Path(self.root)


def _project(root: Path) -> FlowProject | None:
    """Returns the project at or around a folder, with its code imported; None if there is none."""
    try:
        home = FlowProject.find(root)
    except UsageError:
        return None
    with quiet():
        home.load()
    return home


def flow_choice(
    name: str, space: Space, fixed: Sequence[str], home: FlowProject, options: Sequence[str]
) -> SweepChoice:
    """Returns the choice of a flow's task; its parameters may be named without it: `seed=1,2`.

    Raises:
      UsageError: There is no such task.
    """
    cls = home.task(name)
    keys = [*(one.key for one in space.dimensions), *space.fixed]
    space = space.renamed({key: f"{name}.{key}" for key in keys if key in PARAMETERS})
    fixed = [f"{name}.{word}" if word.partition("=")[0] in PARAMETERS else word for word in fixed]
    chain = [base.__name__ for base in chain_of(cls)]
    tasks = list(dict.fromkeys([*home.tasks(), *chain[:-1]]))

    def check(values: Values) -> None:
        compose(home.root / "config", chain, tasks, [*fixed, *space.words(values)], home.name)

    return SweepChoice(FlowTarget(name, tuple(options), str(home.root)), space, fixed, check, [FlowTarget.metric])


def sweep_flow(home: FlowProject, name: str, words: Sequence[str], backend: str | None, model_dir: str | None) -> None:
    """Runs `everstep flow NAME -m key=1,2 …`: every combination, one after the other; prints the summary.

    Raises:
      UsageError: No parameter has several values.
      TrainingError: A trial failed; the others are done.
    """
    swept = [word for word in words if "=" in word and is_swept(word)]
    if not swept:
        given = next((word for word in words if "=" in word), f"{name}.epoch=1")
        remedy = f"list values: {given},…; or omit -m"
        raise UsageError("no parameter has several values", key="-m", received=" ".join(words), remedy=remedy)
    fixed = [word for word in words if "=" not in word or not is_swept(word)]
    options = ("--backend", backend) if backend else ()
    sweep_choice(flow_choice(name, create_space(None, swept), fixed, home, options), model_dir)
