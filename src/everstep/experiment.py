"""`run_experiment`: the one page that shows all parts joined."""

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import redaction
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.config import dialect
from everstep.config.difference import Change
from everstep.data import nest
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.precision import precision
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, check_mode
from everstep.export.folder import export_all
from everstep.loop.announce import announce
from everstep.loop.config import TrainerConfig
from everstep.loop.controller import Action, Controller
from everstep.loop.in_steps import in_steps
from everstep.loop.recovery import Recovery
from everstep.loop.trainer import Trainer
from everstep.run.attempt import Attempt
from everstep.run.changes import accepted_changes, check_keys
from everstep.run.goodput import goodput
from everstep.run.guard import Guard, NoGuard
from everstep.run.record import Run
from everstep.task.task import Task, unpack
from everstep.tracking.background import BackgroundTracker
from everstep.tracking.config import TrackingConfig
from everstep.tracking.console import ConsoleTracker
from everstep.tracking.history import HistoryTracker
from everstep.tracking.mlflow import MlflowTracker
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
    allow_change: Sequence[str] = (),
    header: Mapping[str, Any] | None = None,
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
      allow_change: Keys, such as `runtime.backend`, that a resumed run may change although they alter what it
        computes; one that holds others covers them.
      header: What `config.yaml` says beside the values, so that it repeats the run: `experiment`, `imports`, `gin`.

    Returns:
      The model, and the logs of the last evaluation (of the last loop in mode `train`).

    Raises:
      UsageError: The request cannot be carried out; nothing was left behind.
      TrainingError: The run started and failed.
    """
    redaction.learn(params.as_dict())
    say = _say if verbose else lambda line: None
    _check(mode, params, model_dir, distribution_strategy)
    training = "train" in mode
    post_eval = run_post_eval or mode == "train_and_post_eval"
    directory = Path(model_dir)
    stored = params.replace(runtime={"backend": keras.backend.backend()})
    header = header or ({"experiment": experiment} if experiment else {})
    run = Run.open(directory, experiment or task.name, keras.backend.backend())
    scope = contextlib.nullcontext() if distribution_strategy is None else distribution_strategy.scope()
    guard = Guard(directory, params.runtime) if training else contextlib.nullcontext(NoGuard())
    with (
        guard as guarded,
        _nothing_left(run),
        scope,
        precision(params.runtime.mixed_precision_dtype),
        contextlib.ExitStack() as stack,
    ):
        checkpointer = OrbaxCheckpointer(directory / "checkpoints", _retention(params.trainer), run.id, training)
        stack.callback(checkpointer.close)
        resuming = training and checkpointer.latest() is not None
        changes = _changes(directory, stored, allow_change, str(header.get("gin", "")), resuming)
        if training:
            backend.keep_compiled(str(directory / ".compiled"))
        trainer = trainer or create_trainer(params, task, train=training, evaluate="eval" in mode or post_eval)
        stack.callback(trainer.close)
        params = params.replace(trainer=_plan(mode, params, task, trainer))
        trainer.config = params
        console = ConsoleTracker(params.trainer.train_steps or 0, None if verbose else io.StringIO())
        record = Attempt(run, trainer) if training else None
        sinks = _sinks(directory, params, console, record, training, save_summary)
        if training and save_summary and params.trainer.tracking.mlflow:
            sinks.append(_mlflow(run, params.trainer.tracking, stored))
        tracker = BackgroundTracker(MultiTracker(sinks))
        controller = controller_cls(
            trainer=trainer if training else None,
            evaluator=trainer,
            steps_per_loop=params.trainer.steps_per_loop,
            checkpointer=checkpointer,
            checkpoint_interval=params.trainer.checkpoint_interval,
            checkpoint_seconds=params.trainer.checkpoint_seconds,
            save_failure=params.trainer.save_failure,
            tracker=tracker,
            summary_interval=params.trainer.summary_interval,
            train_actions=train_actions,
            eval_actions=eval_actions,
            trained=record.trained if record else lambda: None,
            recovery=_recovery(params.trainer) if training else None,
            asked=guarded.asked,
            went_back=run.again,
        )
        if record:
            controller.saver.parts.append(record)
        _start(controller, trainer, mode, init_fn or task.initialize, directory)
        for change in changes:
            say(f"resuming with {change}")
        announce(trainer, say)
        if training and not (controller.saver.interval or controller.saver.seconds or controller.saver.is_off):
            say("trainer.checkpoint_interval=0: nothing is saved before training is done, or asked to end")
        with record.recorded(_text(stored, header), changes, guarded.last_beat) if record else contextlib.nullcontext():
            with contextlib.closing(tracker):
                tracker.start(trainer.global_step)
                trainer.after_call = functools.partial(_report, console, guarded, run)
                logs = _run_mode(controller, mode, params.trainer, post_eval)
            trainer.close()
            if training and export:
                _leave_if_asked(guarded)
                _export(trainer, directory)
                _leave_if_asked(guarded)
        if training and len(run.record["attempts"]) > 1:
            say(f"goodput {goodput(run.record)}")
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


def _changes(directory: Path, params: ExperimentConfig, allow: Sequence[str], gin: str, resuming: bool) -> list[Change]:
    """Returns what has changed since the run in the directory was trained; refuses what alters its arithmetic."""
    allow = [allow] if isinstance(allow, str) else list(allow)
    if resuming:
        return accepted_changes(directory, params, allow, gin)
    check_keys(directory, params, allow)
    return []


def _plan(mode: str, params: ExperimentConfig, task: Task, trainer: Trainer) -> TrainerConfig:
    """Returns the trainer's section in steps; as it is, where nothing in it that counts steps will be used."""
    config = params.trainer
    if "train" not in mode and (mode == "eval" or config.epochs is None):
        return config
    stream = _training_data(params, task) if trainer.train_stream is None else trainer.train_stream
    return in_steps(config, stream.batches_per_epoch)


def _training_data(params: ExperimentConfig, task: Task) -> Stream:
    """Returns the data somebody else trains on: continuous_eval has to know when that one is done."""
    data = params.task.train_data.replace(is_training=True)
    try:
        return make_stream(task.build_inputs(data), data, training=True, seed=params.runtime.seed)
    except UsageError as error:
        raise UsageError(f"trainer.epochs: how long they are, task.train_data has to say: {error}") from error


def _retention(config: TrainerConfig) -> Retention:
    return Retention(
        newest=config.max_to_keep,
        every_steps=config.keep_steps,
        every_seconds=config.keep_seconds,
        best=config.keep_best,
        metric=config.best_checkpoint_eval_metric,
        mode=config.best_checkpoint_metric_comp,
    )


def _recovery(config: TrainerConfig) -> Recovery:
    return Recovery(config.loss_upper_bound, config.recovery_begin_steps, config.recovery_max_trials)


def _mlflow(run: Run, config: TrackingConfig, params: ExperimentConfig) -> MlflowTracker:
    record = run.record
    tags = {"experiment": record["experiment"], "backend": record["backend"], "attempt": len(record["attempts"]) + 1}
    return MlflowTracker(
        run.directory,
        run.id,
        config.mlflow_experiment or record["experiment"],
        config.mlflow_uri or None,
        params=redaction.tree(params.as_dict()),
        tags=tags,
        artifacts=["config.yaml"],
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
    controller.checkpointer.require_hope()
    if mode == "eval":
        raise UsageError(f"there is no checkpoint to evaluate in {str(directory)!r}: train first, or check --model-dir")
    initialize(trainer.model)
    trainer.engine.pull()


def _run_mode(controller: Controller, mode: str, config: Any, post_eval: bool) -> Logs:
    """Does what the mode says; `config` is the trainer's section, in steps."""
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


def _report(console: ConsoleTracker, guard: Any, run: Run, step: int) -> bool:
    """Between two calls of the engine: shows how far it is; returns whether to go on."""
    console.progress(step)
    run.stepped()
    return bool(guard.go_on(step))


def _leave_if_asked(guard: Any) -> None:
    """All is trained and saved; what is left to do, the next attempt does."""
    if leaving := guard.asked():
        raise leaving


def _say(line: str) -> None:
    print(redaction.text(line), file=sys.stderr)


def _text(params: ExperimentConfig, header: Mapping[str, Any]) -> str:
    """Returns `config.yaml`: what repeats the run, and no secret."""
    return dialect.dump(redaction.tree(dialect.escaped({**header, **params.as_dict()})))


def _export(trainer: Trainer, directory: Path) -> None:
    sample = nest.map_leaves(lambda leaf: leaf[:8], unpack(trainer.example)[0])
    export_all(trainer.model, directory / "export", sample)
