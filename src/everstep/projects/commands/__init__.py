"""The commands of projects, and how `everstep sweep` runs them. Each module is imported when it is used.

new.py      `everstep new`: templates, names that are refused; a folder that is not empty
check.py    `everstep check`: its options; the checks are in `components/checks/`
run.py      `everstep run`: its options, what is printed
flow.py     `everstep flow`: its options; `-m` is a sweep
catalog.py  `everstep catalog`: list, show, check

swept_components.py  a run of components as a target of `everstep sweep`
swept_flows.py       a task of a flow as one; `everstep flow -m`
"""

from everstep.cli import Command, experiment_keys, words_for

_COMPONENTS = "Projects of a team: components, with a config file in runs/NAME"
_FLOWS = "Projects of a team: flows, with tasks as classes"
_MODULES = "everstep.projects.commands"


def _flow_keys(option: str, target: str) -> list[str]:
    from everstep.projects.flow import key_meant

    key = key_meant(option.replace("-", "_"), target or "TASK")
    return [key] if key else []


CHECK = Command(_COMPONENTS, "Check a run's components before it is trained.", f"{_MODULES}.check", experiment_keys)
RUN = Command(_COMPONENTS, "Train, export and evaluate a run of components.", f"{_MODULES}.run", trains_as_several=True)
FLOW = Command(_FLOWS, "Run a task of a flow: fetch, prepare, train, log.", f"{_MODULES}.flow", _flow_keys, True)
CATALOG = Command(_FLOWS, "List the data of a flow project, or check that it exists.", f"{_MODULES}.catalog")
NEW = Command(
    "Registered experiments",
    "Create a project: config, data, code, tests and a sample.",
    f"{_MODULES}.new",
    also_typed=words_for("everstep new PROJECT", "init create startproject scaffold template"),
)
