"""Entry points: modules of installed packages that register something when they are imported.

[project.entry-points."everstep.experiments"]
mine = "my_package.experiments"
"""

import importlib.metadata

SHIPPED = {
    "everstep.experiments": {
        "zoo": "everstep.recipes",
        "bct": "everstep.recipes.bct.digits",
        "hub": "everstep.recipes.hub",
    },
    "everstep.layouts": {"shipped": "everstep.frontends.layouts"},
}
"""This package's own by group, as `pyproject.toml` declares them: its sources may be used without being installed."""


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of a group: this package's own first, then those of installed packages."""
    shipped = SHIPPED.get(group, {})
    own = [importlib.metadata.EntryPoint(name, value, group) for name, value in shipped.items()]
    installed = importlib.metadata.entry_points(group=group)
    return [*own, *(point for point in installed if point.value not in shipped.values())]
