"""The way in: a path becomes the model's weights, and a report says which."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import keras

from everstep.errors import UsageError
from everstep.task.initial import checkpoints, find, keras_file
from everstep.task.initial.matching import Plan, Report, model_weights

logger = logging.getLogger(__name__)

KEY = "task.init_checkpoint"

_PLANS: Mapping[str, Callable[[keras.Model, tuple[Path, ...]], Plan]] = {
    find.KERAS: keras_file.plan,
    find.WEIGHTS: keras_file.plan,
    find.TENSORFLOW: checkpoints.plan_tensorflow,
    find.SAVED_MODEL: checkpoints.plan_tensorflow,
    find.RUN: checkpoints.plan_run,
}


def load(model: keras.Model, path: str, *, key: str = KEY, complete: bool = False) -> Report:
    """Loads what fits of the weights under `path` into a built model.

    Example:
      report = load(model, "runs/pretrained")
      print(*report.lines(), sep="\\n")

    Args:
      model: The model. Nothing but its weights is changed: no seed, no metric, no optimizer.
      path: What `find` knows: `.keras`, `.weights.h5`, TensorFlow's checkpoints and SavedModels, runs. Of a run that
        averages its weights, the averages are taken.
      key: What the path was given as; errors and log lines begin with it.
      complete: Whether every weight of the model has to be there.

    Returns:
      Which weights were loaded. Those that were not keep their values, and are named in a warning.

    Raises:
      UsageError: There is nothing to load, it is broken or hostile, or none of it fits; the model is as it was.
    """
    try:
        report = _loaded(model, path, complete)
    except UsageError as error:
        raise UsageError([dataclasses.replace(problem, key=key) for problem in error.problems]) from error
    for line in report.lines():
        logger.log(logging.INFO if report.is_complete else logging.WARNING, "%s: %s", key, line)
    return report


def _loaded(model: keras.Model, path: str, complete: bool) -> Report:
    if not model_weights(model):
        raise UsageError(f"the model {model.name!r} has no weights yet", remedy="build it first")
    source = find.find(path)
    with _PLANS[source.kind](model, source.paths) as plan:
        report = dataclasses.replace(plan.report, kind=plan.report.kind or source.kind)
        if not report.matched:
            raise UsageError(_nothing(report))
        if complete and not report.is_complete:
            raise UsageError(f"not every weight of model {model.name!r} is there: {report.lines()[1]}")
        plan.apply()
    return report


def _nothing(report: Report) -> str:
    wanted = [*report.missing, *map(str, report.mismatched)]
    has, wants = ", ".join(report.unexpected[:5]) or "none", ", ".join(wanted[:5])
    return (
        f"{report.path!r} does not fit the model: none of its weights has the name and the shape of one "
        f"here; the model wants {wants}{', …' if len(wanted) > 5 else ''}; what is there and not wanted: "
        f"{has}{', …' if len(report.unexpected) > 5 else ''}"
    )
