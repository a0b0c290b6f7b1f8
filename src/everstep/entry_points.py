"""Entry points: modules of installed packages, and of this one, that register something when they are imported.

[project.entry-points."everstep.experiments"]
mine = "my_package.experiments"

This is also how the companions of this package (projects, sweeps, …) join the core, which imports none of them: where
the folder of one is gone, the core trains, and says what is missing when it is asked for.
"""

import functools
import importlib.metadata
import importlib.util
import logging
import sys

SHIPPED = {
    "everstep.experiments": {
        "zoo": "everstep.recipes.zoo",
        "bct": "everstep.recipes.bct.digits",
        "hub": "everstep.recipes.hub",
    },
    "everstep.bindings": {"gin": "everstep.model_garden.gin.bindings"},
    "everstep.command_lines": {"absl": "everstep.model_garden.absl_flags"},
    "everstep.commands": {
        "check": "everstep.projects.commands:CHECK",
        "run": "everstep.projects.commands:RUN",
        "flow": "everstep.projects.commands:FLOW",
        "catalog": "everstep.projects.commands:CATALOG",
        "new": "everstep.projects.commands:NEW",
        "sweep": "everstep.sweeps.commands:SWEEP",
        "submit": "everstep.submit.commands:SUBMIT",
        "tune": "everstep.tuner.commands:TUNE",
        "bct": "everstep.recipes.bct.commands:BCT",
    },
    "everstep.layouts": {"shipped": "everstep.projects.layouts"},
    "everstep.repetitions": {"projects": "everstep.projects.repetitions", "programs": "everstep.reproduce.programs"},
    "everstep.sweep_targets": {
        "scripts": "everstep.sweeps.script",
        "components": "everstep.projects.commands.swept_components",
        "flows": "everstep.projects.commands.swept_flows",
    },
    "everstep.runs": {"submit": "everstep.submit.submissions", "sweeps": "everstep.sweeps.listing"},
}
"""This package's own by group, as `pyproject.toml` declares them: its sources may be used without being installed."""

_logger = logging.getLogger(__name__)
_loaded: set[tuple[str, str]] = set()


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of a group: those of this package's companions first, then of installed packages."""
    shipped = SHIPPED.get(group, {})
    own = [
        importlib.metadata.EntryPoint(name, value, group) for name, value in shipped.items() if not is_missing(value)
    ]
    return [*own, *(point for point in _installed(tuple(sys.path)) if point.group == group)]


@functools.cache
def _installed(path: tuple[str, ...]) -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of other packages on Python's path; reading those of all takes milliseconds."""
    points = importlib.metadata.entry_points()
    groups = sorted(group for group in points.groups if group.startswith("everstep."))
    ours = [point for group in groups for point in points.select(group=group)]
    return [point for point in ours if point.dist is None or point.dist.name != "everstep"]


def load_modules(group: str, what: str) -> None:
    """Imports the modules that the entry points of a group name, once each; a broken one is a warning in the log.

    Args:
      group: The group.
      what: What they register, for the warning: `experiments`.
    """
    for point in entry_points(group):
        if (group, point.value) in _loaded:
            continue
        _loaded.add((group, point.value))
        try:
            point.load()
        except Exception as error:  # a broken package must not stop this run
            _logger.warning(
                "%s of %r (%s) are skipped: %s: %s", what, point.name, point.value, type(error).__name__, error
            )


def missing_companions(group: str) -> dict[str, str]:
    """Returns this package's own entry points of a group whose folder is not there: the package of each by its name."""
    return {name: companion(value) for name, value in SHIPPED.get(group, {}).items() if is_missing(value)}


def companion(module: str) -> str:
    """Returns the first-level package that a module is in: `everstep.sweeps` for `everstep.sweeps.listing`."""
    return ".".join(module.partition(":")[0].split(".")[:2])


def is_missing(module: str) -> bool:
    """Returns whether the first-level package that a module is in is not there."""
    return importlib.util.find_spec(companion(module)) is None
