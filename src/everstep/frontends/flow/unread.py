"""Parameters that a task never reads: a misspelt `epcoh` would change nothing, and look on MLflow as if it had."""

from collections.abc import Iterator

from everstep.config.key_paths import ABSENT, find_key
from everstep.errors import Problem, did_you_mean
from everstep.frontends.flow.settings import PARAMETERS, FlowSettings, Params

_IN_OPTIMIZER = {
    "learning_rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "optimizer": "optimizer.optimizer.type",
    "momentum": "optimizer.optimizer",
    "weight_decay": "optimizer.optimizer",
}
"""Names that people use for what `config/optimizer.yaml` sets, and its keys."""

_SHOWN = ("model_name",)
"""Parameters that are for MLflow, whether the task reads them or not."""


def unread_parameters(settings: FlowSettings, params: Params) -> list[Problem]:
    """Returns a problem for each parameter that is written in a file or an override, and that nothing has read so far.

    Args:
      settings: The configuration, which knows where each parameter is written.
      params: The parameters that the task's code has, `Params.watched`.
    """
    return list(_problems(settings, set(params._reads or ())))


def _problems(settings: FlowSettings, reads: set[str]) -> Iterator[Problem]:
    values = settings.params.as_dict()
    for name, origin in settings.written.items():
        received = find_key(values, name)
        if received is ABSENT or name in _SHOWN or _is_read(name, reads):
            continue
        reason = "but the task never reads it, so it changes nothing"
        yield Problem(f"{settings.task}.{name}", reason, origin, received, _remedy(name, reads))


def _is_read(name: str, reads: set[str]) -> bool:
    """Returns whether a value was read: itself, or a part of it."""
    return name in reads or any(read.startswith(f"{name}.") for read in reads)


def _remedy(name: str, reads: set[str]) -> str:
    if key := _IN_OPTIMIZER.get(name):
        return f"the optimizer is set in config/optimizer.yaml, or on the command line: {key}=…"
    known = {*PARAMETERS, *reads} - {name}
    return did_you_mean(name, known, most=1, similarity=0.6) or "remove it, or read it in the task"
