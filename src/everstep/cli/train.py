"""`everstep train`."""

import hashlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from everstep import redaction, storage
from everstep.checkpoint.remote import checked, is_url
from everstep.cli import completion, options
from everstep.cli.backends import load_backend
from everstep.cli.command import new_app
from everstep.cli.output import aligned, number, print_last, quiet
from everstep.cli.process import without_restarts
from everstep.cli.resolving import Resolved, resolve
from everstep.cli.run_resolved import run_resolved
from everstep.config import dialect, get_task
from everstep.errors import TrainingError, UsageError
from everstep.experiment_config import Mode
from everstep.gang import current_gang
from everstep.launch import supervise
from everstep.loop import TrainerConfig
from everstep.types import Logs

app = new_app()

ModeOption = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="train, eval, train_and_eval, train_and_post_eval or continuous_eval.",
        autocompletion=completion.one_of(*Mode),
    ),
]
ModelDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The run directory, or its URL; by default runs/EXPERIMENT-DIGEST."),
]
FastDevRun = Annotated[
    bool, typer.Option("--fast-dev-run", help="Try one batch of everything, export included, and keep nothing.")
]
ProfileFlag = Annotated[
    bool, typer.Option("--profile", help="Keep a trace of a few steps in DIR/profile; trainer.profile selects them.")
]
NoExport = Annotated[bool, typer.Option("--no-export", help="Do not export the trained model.")]


@app.command(epilog="Example: everstep train mnist/mlp trainer.train_steps=500 --backend jax")
@options.takes_request()
def train(
    context: typer.Context,
    request: options.ExperimentRequest,
    mode: ModeOption = "train_and_eval",
    model_dir: ModelDir = None,
    allow_change: options.AllowChange = None,
    no_export: NoExport = False,
    max_restarts: options.MaxRestarts = 0,
    fast_dev_run: FastDevRun = False,
    profile: ProfileFlag = False,
) -> None:
    """Train an experiment; run again, it resumes.

    Values come from the experiment, then from files, gin bindings, flags, --params-override and KEY=VALUE; later
    ones win.
    """
    _check_combination(request, mode, fast_dev_run, max_restarts)
    if fast_dev_run:
        _fast_dev_run(resolve(request), mode, export=not no_export)
        return
    if max_restarts:  # the restarted process does everything else, and imports the user's modules
        raise typer.Exit(supervise(without_restarts(context.obj), max_restarts))
    if profile:  # before the values that are spelled out, which win
        request.params_override = [*(request.params_override or ()), "trainer.profile=auto"]
    resolved = resolve(request)
    directory = run_directory(model_dir, resolved)
    logs = run_resolved(resolved, mode, directory, export=not no_export, allow_change=allow_change or ())
    if current_gang().is_first:
        print_last(_summary(directory, logs, resolved.params.trainer, mode, not no_export))


def _check_combination(request: options.ExperimentRequest, mode: str, fast_dev_run: bool, max_restarts: int) -> None:
    """Checks that no option makes another one pointless.

    Raises:
      UsageError: One does; names both.
    """
    if fast_dev_run:
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
                    "has no effect with --fast-dev-run, which runs one batch of everything",
                    key=option,
                    received=value,
                    remedy="omit one of them",
                )
    if request.overfit_batches is not None and request.limit_eval is not None:
        raise UsageError(
            "has no effect with --overfit-batches, which evaluates the batches it trains on",
            key="--limit-eval",
            received=request.limit_eval,
            remedy="omit one of them",
        )
    Mode(mode)
    if fast_dev_run and "train" not in mode:
        raise UsageError(
            "does not train, which --fast-dev-run needs", key="--mode", received=mode, remedy="choose a mode that does"
        )
    if request.sanity_eval is not None and not ("train" in mode and "eval" in mode):
        raise UsageError(
            "does not train and evaluate, which --sanity-eval needs",
            key="--mode",
            received=mode,
            remedy="choose a mode that does",
        )


def _fast_dev_run(resolved: Resolved, mode: str, export: bool) -> None:
    """Runs one batch of everything in a temporary directory; prints each stage.

    Raises:
      UsageError: The request cannot be carried out; names the stage.
      TrainingError: A stage failed; names it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="everstep-fast-dev-run-") as folder:
            with quiet():
                from everstep.fast_dev_run import Stages, dev_run

                load_backend(resolved.params.runtime.seed)
            dev_run(
                resolved.params,
                lambda params: get_task(params.task, logging_dir=folder),
                mode,
                Path(folder),
                Stages(print_last),
                export,
            )
    except (UsageError, TrainingError) as error:
        raise type(error)(str(error), key="--fast-dev-run") from error
    print_last("one batch of everything works; nothing was kept")


def run_directory(model_dir: str | None, resolved: Resolved) -> Path | str:
    """Returns the directory of the run, which is not created yet, or its URL.

    Args:
      model_dir: The value of `--model-dir`; None for the default directory.
      resolved: The experiment.

    Raises:
      UsageError: It is a file, cannot be written to, or is no URL of a store.
    """
    if model_dir == "":
        raise UsageError("expected a directory for the run", key="--model-dir", received="")
    if model_dir and is_url(model_dir):
        return checked(model_dir, "--model-dir")
    directory = default_directory(resolved) if model_dir is None else Path(model_dir)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    try:
        storage.prepare_directory(existing)
    except UsageError as error:
        in_the_way = "" if directory == existing else f"{str(existing)!r} "
        reason = f"{in_the_way}{error.reason}"
        raise UsageError(reason, key="--model-dir", received=str(directory), remedy=error.remedy) from error
    return directory


def default_directory(resolved: Resolved) -> Path:
    """Returns `runs/<experiment>-<digest of the configuration>`: the same request finds its run again.

    Secrets do not count: with a new password it is still the same run, and a digest must not help to guess one. Whether
    a trace is taken does not count either.
    """
    params = resolved.shown.replace(trainer={"profile": ""})
    text = dialect.dump(redaction.tree(params.as_dict()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path("runs", f"{resolved.experiment.replace('/', '-')}-{digest[:10]}")


def _summary(directory: Path | str, logs: Logs, trainer: TrainerConfig, mode: str, exports: bool) -> str:
    from everstep.run import best_step, closing_rows, exported_files

    run = str(directory)
    rows = [("run", run), ("curves", f"tensorboard --logdir {run}")]
    rows += [(metric, number(value)) for metric, value in logs.items()]
    if Mode(mode).trains:
        local = None if is_url(run) else Path(run)
        exported = exported_files(local) if local else ["export"]
        metric, better = trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
        best = best_step(local, metric, better if metric else None) if local else ""
        rows += closing_rows(run, best, exported if exports else [])
    return aligned(rows)
