"""`everstep train … --fast-dev-run`: one batch of everything, and nothing kept."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.cli.ending import print_last
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved
from everstep.cli.running import load_backend
from everstep.config import get_task
from everstep.errors import TrainingError, UsageError
from everstep.experiment_config import check_mode
from everstep.quick.stages import Stages


def check_combination(mode: str, others: Mapping[str, Any]) -> None:
    """Refuses what `--fast-dev-run` cannot be combined with.

    Args:
      mode: What the run is asked to do.
      others: The options that ask for something else, by name.

    Raises:
      UsageError: Names the option.
    """
    for option, value in others.items():
        if value:
            raise UsageError(
                f"--fast-dev-run and {option} {value}: one batch of everything is all it does; give one of the two"
            )
    check_mode(mode)
    if "train" not in mode:
        raise UsageError(f"--fast-dev-run and --mode {mode}: there is nothing to train; choose a mode that trains")


def rehearse(resolved: Resolved, mode: str, export: bool) -> None:
    """Goes through a run with one batch of everything, in a directory that is gone afterwards; prints each stage.

    Raises:
      UsageError: The request cannot be carried out; names the stage.
      TrainingError: A stage failed; names it.
    """
    with _explained(), tempfile.TemporaryDirectory(prefix="everstep-fast-dev-run-") as folder:
        with quiet():
            module = load_backend(resolved.params.runtime.seed, "everstep.quick.dev_run")
        module.dev_run(
            resolved.params,
            lambda params: get_task(params.task, logging_dir=folder),
            mode,
            Path(folder),
            Stages(lambda line: print_last(redaction.text(line))),
            export,
        )
    print_last("one batch of everything works; nothing was kept")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"--fast-dev-run: {error}") from error
    except TrainingError as error:
        raise TrainingError(f"--fast-dev-run: {error}") from error
