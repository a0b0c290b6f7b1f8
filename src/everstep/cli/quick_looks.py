"""Quick looks of `everstep train`: which options go together, and one batch of everything, with nothing kept."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from everstep import redaction
from everstep.cli.ending import print_last
from everstep.cli.options import Request
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved
from everstep.cli.running import load_backend
from everstep.config import get_task
from everstep.errors import TrainingError, UsageError
from everstep.experiment_config import check_mode
from everstep.quick.stages import Stages


def check_quick_looks(request: Request, mode: str, fast_dev_run: bool, max_restarts: int) -> None:
    """Refuses options that another one leaves without effect.

    Raises:
      UsageError: Names both.
    """
    if fast_dev_run:
        _check_fast_dev_run(request, mode, max_restarts)
    if request.overfit_batches is not None and request.limit_eval is not None:
        raise UsageError(
            f"--limit-eval {request.limit_eval} and --overfit-batches {request.overfit_batches}: what is evaluated is "
            "the batches that are trained on; give one of the two"
        )
    check_mode(mode)
    if request.sanity_eval is not None and not ("train" in mode and "eval" in mode):
        raise UsageError(f"--sanity-eval {request.sanity_eval} and --mode {mode}: it does not train and evaluate")


def _check_fast_dev_run(request: Request, mode: str, max_restarts: int) -> None:
    others = {
        "--max-restarts": max_restarts,
        "--overfit-batches": request.overfit_batches,
        "--limit-train": request.limit_train,
        "--limit-eval": request.limit_eval,
        "--sanity-eval": request.sanity_eval,
    }
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
