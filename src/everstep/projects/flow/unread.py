"""Parameters that a task never reads: a misspelt `epcoh` would change nothing, and look on MLflow as if it had."""

import re
from collections.abc import Iterator, Sequence

from everstep.config import ABSENT, find_key
from everstep.errors import Problem, did_you_mean
from everstep.projects.flow.settings import PARAMETERS, FlowSettings, Params, optimizer_key

_SHOWN = ("model_name",)
"""Parameters that are for MLflow, whether the task reads them or not."""


def unread_parameters(settings: FlowSettings, params: Params) -> list[Problem]:
    """Returns a problem for each parameter that is written in a file or an override, and that nothing has read so far.

    A block that is probably the task's, misspelt, is one, too.

    Args:
      settings: The configuration, which knows where each parameter is written.
      params: The parameters that the task's code has, `Params.watched`.
    """
    return [*settings.misspelt, *_problems(settings, set(params._reads or ()))]


def _problems(settings: FlowSettings, reads: set[str]) -> Iterator[Problem]:
    values, told = settings.params.as_dict(), set[str]()
    for path, origin in settings.written.items():
        name = settings.params.leaf_of(path)
        received = find_key(values, name)
        if received is ABSENT or name in _SHOWN or name in reads or name in told:
            continue
        told.add(name)
        reason = "but the task never reads it, so it changes nothing"
        yield Problem(f"{settings.task}.{name}", reason, origin, received, _remedy(name, reads) or _GENERAL)


_GENERAL = "remove it, or read it in the task"


def _remedy(name: str, reads: set[str]) -> str:
    if name == "experiment":
        return "it belongs outside of the task's block"
    if key := optimizer_key(name):
        return f"the optimizer is set in config/optimizer.yaml, or on the command line: {key}=…"
    known = {*PARAMETERS, *reads} - {name, *(name[: end.start()] for end in re.finditer(r"\.", name))}
    return did_you_mean(name, known, most=1, similarity=0.65)


def shown(problems: Sequence[Problem]) -> list[str]:
    """Returns the lines that tell of unread parameters: one for each that was probably meant to be another, then one.

    The others may be those of a base class, which a `run` of the user's own need not read.
    """
    others = [problem for problem in problems if problem.remedy == _GENERAL]
    lines = [str(problem) for problem in problems if len(others) == 1 or problem.remedy != _GENERAL]
    if len(others) < 2:
        return lines
    task = others[0].key.partition(".")[0]
    names = ", ".join(problem.key.partition(".")[2] for problem in others)
    return [*lines, str(Problem(task, f"never reads {names}, so they change nothing"))]
