"""Loads the weights at a path into a model; the entry point of this package."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
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
    """Loads the weights at `path` that fit into a built model.

    Example:
      report = load(model, "runs/pretrained")
      print(*report.lines(), sep="\\n")

    Args:
      model: The model. Only its weights are changed: no seed, no metric, no optimizer.
      path: A `.keras` or `.weights.h5` file, a TensorFlow checkpoint, a SavedModel or a run (see `find`). If a run
        averages its weights, the averages are loaded.
      key: The option or config key of the path, for errors and log lines.
      complete: Whether every weight of the model must be found.

    Returns:
      A report of the weights that were loaded. The others keep their values, and a warning lists them.

    Raises:
      UsageError: There is nothing to load, the file is damaged or hostile, or no weight fits; the model is unchanged.
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
        raise UsageError(f"the model {model.name!r} has no weights yet", received=path, remedy="build it first")
    source = find.find(path)
    with _PLANS[source.kind](model, source.paths) as plan:
        report = dataclasses.replace(plan.report, kind=plan.report.kind or source.kind)
        if not report.matched:
            wanted = [*report.missing, *map(str, report.mismatched)]
            raise UsageError(
                "does not fit the model: no array has the name and shape of one of its weights; the model has "
                f"{_first(wanted)}; the file has {_first(report.unexpected)}",
                received=report.path,
            )
        if complete and not report.is_complete:
            raise UsageError(f"lacks weights of the model {model.name!r}: {report.lines()[1]}", received=report.path)
        plan.apply()
    return report


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "none"
