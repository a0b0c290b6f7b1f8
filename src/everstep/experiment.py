"""`run_experiment`: the one page that shows all parts joined."""

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.data import nest
from everstep.engine import backend
from everstep.engine.precision import precision
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, check_mode
from everstep.export.folder import export_all
from everstep.loop.announce import announce
from everstep.loop.controller import Action, Controller
from everstep.loop.trainer import Trainer
from everstep.run.attempt import Attempt
from everstep.run.record import Run
from everstep.task.task import Task, unpack
from everstep.tracking.background import BackgroundTracker
from everstep.tracking.console import ConsoleTracker
from everstep.tracking.history import HistoryTracker
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import MultiTracker, Tracker
from everstep.types import Logs


def run_experiment(
    distribution_strategy: Any,
    task: Task,
    mode: str,
    params: ExperimentConfig,
    model_dir: str | Path,
    run_post_eval: bool = False,
    save_summary: bool = True,
    train_actions: Iterable[Action] = (),
    eval_actions: Iterable[Action] = (),
    trainer: Trainer | None = None,
    controller_cls: Callable[..., Controller] = Controller,
    init_fn: Callable[[keras.Model], None] | None = None,
    experiment: str = "",
    export: bool = True,
    verbose: bool = True,
) -> tuple[keras.Model, Logs]:
    """Trains or evaluates a task as `params` say, in one directory; run again, it resumes.

    Example:
        params = everstep.get_exp_config("mnist/mlp")
        task = everstep.get_task(params.task)
        model, logs = everstep.run_experiment(None, task, "train_and_eval", params, "runs/mlp")

    Args:
      distribution_strategy: A `tf.distribute` strategy, on TensorFlow; None for one device.
      task: The task.
      mode: One of `train`, `eval`, `train_and_eval`, `train_and_post_eval`, `continuous_eval`.
      params: The experiment's configuration.
      model_dir: The run directory.
      run_post_eval: Evaluate once after whatever the mode does.
      save_summary: Whether to write TensorBoard events and `history.csv`.
      train_actions: Called with the logs after each training loop.
      eval_actions: Called with the logs after each evaluation.
      trainer: A trainer made by the caller instead of the default one.
      controller_cls: The outer loop.
      init_fn: Gives the model its initial weights instead of `task.initialize`; not called on resume.
      experiment: The experiment's registered name, for the record.
      export: Whether to export the model when training is done.
      verbose: Whether to tell a person, on standard error, what is going on.

    Returns:
      The model, and the logs of the last evaluation (of the last loop in mode `train`).

    Raises:
      UsageError: The request cannot be carried out; nothing was left behind.
      TrainingError: The run started and failed.
    """
    say = functools.partial(print, file=sys.stderr) if verbose else lambda line: None
    _check(mode, params, model_dir, distribution_strategy)
    training = "train" in mode
    post_eval = run_post_eval or mode == "train_and_post_eval"
    directory = Path(model_dir)
    run = Run.open(directory, experiment or task.name, keras.backend.backend())
    scope = contextlib.nullcontext() if distribution_strategy is None else distribution_strategy.scope()
    with _nothing_left(run), scope, precision(params.runtime.mixed_precision_dtype), contextlib.ExitStack() as stack:
        if training:
            storage.prepare_directory(directory)
        trainer = trainer or create_trainer(params, task, train=training, evaluate="eval" in mode or post_eval)
        stack.callback(trainer.close)
        checkpointer = OrbaxCheckpointer(directory / "checkpoints", max_to_keep=params.trainer.max_to_keep)
        stack.callback(checkpointer.close)
        console = ConsoleTracker(params.trainer.train_steps, None if verbose else io.StringIO())
        record = Attempt(run, trainer) if training else None
        sinks = _sinks(directory, params, console, record, training, save_summary)
        tracker = BackgroundTracker(MultiTracker(sinks))
        controller = controller_cls(
            trainer=trainer if training else None,
            evaluator=trainer,
            steps_per_loop=params.trainer.steps_per_loop,
            checkpointer=checkpointer,
            checkpoint_interval=params.trainer.checkpoint_interval,
            tracker=tracker,
            summary_interval=params.trainer.summary_interval,
            train_actions=train_actions,
            eval_actions=eval_actions,
            trained=record.trained if record else lambda: None,
        )
        if training:
            _check_same(run, keras.backend.backend())
        _start(controller, trainer, mode, init_fn or task.initialize, directory)
        announce(trainer, say)
        with record.recorded(_text(params, experiment)) if record else contextlib.nullcontext():
            with contextlib.closing(tracker):
                tracker.start(trainer.global_step)
                trainer.after_call = functools.partial(_report, console)
                logs = _run_mode(controller, mode, params, post_eval)
            trainer.close()
            if training and export:
                _export(trainer, directory)
        return trainer.model, logs


def create_trainer(
    params: ExperimentConfig, task: Task, train: bool, evaluate: bool, trainer_cls: type[Trainer] = Trainer
) -> Trainer:
    """Seeds everything, builds model and optimizer as `params` say, and joins them in a trainer."""
    backend.prepare(params.runtime.seed)
    model = task.build_model()
    optimizer = None
    if train:
        optimizer = model.optimizer if model.compiled else None
        optimizer = optimizer or task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    return trainer_cls(params, task, model, optimizer, train=train, evaluate=evaluate)


@contextlib.contextmanager
def _nothing_left(run: Run) -> Iterator[None]:
    """Removes the directory again if this attempt created it, failed, and ran no step."""
    try:
        yield
    except BaseException:
        run.discard()
        raise


def _check(mode: str, params: ExperimentConfig, model_dir: Any, strategy: Any) -> None:
    check_mode(mode)
    if not model_dir:
        raise UsageError(f"model_dir: received {model_dir!r}; name a directory for the run")
    if "://" in str(model_dir):
        raise UsageError(f"model_dir: received {model_dir!r}, but runs live in local directories only: name one")
    if strategy is not None and not hasattr(strategy, "scope"):
        raise UsageError(f"distribution_strategy: received {strategy!r}; expected a tf.distribute strategy, or None")
    params.validate()
    backend.select(params.runtime.backend)


def _check_same(run: Run, backend_name: str) -> None:
    """Refuses to go on with a run on another backend: the same seed draws other numbers there."""
    before = run.before
    if before.get("step") and before.get("backend") not in (None, backend_name):
        raise UsageError(
            f"runtime.backend: {str(run.directory)!r} was trained on {before['backend']!r} to step {before['step']}, "
            f"but the backend is {backend_name!r}: go on with the former, or name another directory"
        )


def _sinks(
    directory: Path, params: ExperimentConfig, console: Tracker, record: Tracker | None, training: bool, save: bool
) -> list[Tracker]:
    sinks: list[Tracker] = [console]
    if save:
        sinks.append(TensorBoardTracker(directory, params.trainer.validation_summary_subdir))
    if save and training:  # an evaluation job beside the trainer must not write the same file
        sinks.append(HistoryTracker(directory / "history.csv"))
    return [*sinks, record] if record else sinks


def _start(controller: Controller, trainer: Trainer, mode: str, initialize: Callable, directory: Path) -> None:
    """Restores the newest checkpoint, or, in a run that has none, gives the model its initial weights."""
    if mode == "continuous_eval":
        return
    if controller.restore_checkpoint() is not None:
        return
    if mode == "eval":
        raise UsageError(f"there is no checkpoint to evaluate in {str(directory)!r}: train first, or check --model-dir")
    initialize(trainer.model)
    trainer.engine.pull()


def _run_mode(controller: Controller, mode: str, params: ExperimentConfig, post_eval: bool) -> Logs:
    config = params.trainer
    if mode == "eval":
        logs = controller.evaluate(config.validation_steps)
    elif mode == "continuous_eval":
        logs = controller.evaluate_continuously(
            config.validation_steps, config.continuous_eval_timeout, lambda: controller.step >= config.train_steps
        )
    elif mode == "train_and_eval":
        logs = controller.train_and_evaluate(config.train_steps, config.validation_steps, config.validation_interval)
    else:
        logs = controller.train(config.train_steps)
        if post_eval:
            logs = controller.evaluate(config.validation_steps)
    return logs


def _report(console: ConsoleTracker, step: int) -> bool:
    console.progress(step)
    return True


def _text(params: ExperimentConfig, experiment: str) -> str:
    resolved = params.replace(runtime={"backend": keras.backend.backend()})
    return (f"experiment: {experiment}\n" if experiment else "") + resolved.to_yaml()


def _export(trainer: Trainer, directory: Path) -> None:
    sample = nest.map_leaves(lambda leaf: leaf[:8], unpack(trainer.example)[0])
    export_all(trainer.model, directory / "export", sample)
