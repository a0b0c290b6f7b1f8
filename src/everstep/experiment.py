"""`run_experiment`: the page on which all parts come together.

Open the run (lock, signals, checkpoints), build (configuration, trainer, trackers, hooks, controller), restore, run,
finish (cost, export). Each step is a section of `run_experiment`; what a section calls follows in the same order.
"""

import contextlib
import functools
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import redaction
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.remote.run_copies import working_copy
from everstep.checkpoint.retention import Retention
from everstep.config import dialect
from everstep.config.difference import Change
from everstep.data import nest
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.precision import precision
from everstep.engine.strategy import configured_strategy, entered
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, Mode
from everstep.export.model_export import evaluated_weights, export_all, sample_inputs
from everstep.loop import random_state
from everstep.loop.actions.from_config import ConfiguredActions
from everstep.loop.config import TrainerConfig, in_steps
from everstep.loop.controller import Action, Controller
from everstep.loop.create_trainer import create_trainer
from everstep.loop.hooks import Hook, LearningRate
from everstep.loop.orbit import accepts_model_garden_order
from everstep.loop.recovery import Recovery
from everstep.loop.schedule import EpochSchedule
from everstep.loop.trainer import Trainer
from everstep.run import cost
from everstep.run.attempt import Attempt, Guard, NoGuard, Progress
from everstep.run.cost import Throughput
from everstep.run.digest import weights_digest
from everstep.run.goodput import goodput
from everstep.run.profiling import Profile
from everstep.run.record import Run
from everstep.run.resume_checks import accepted_changes, check_keys, find_key
from everstep.run.signals import Interrupted
from everstep.run.trackers import LiveFacts, create_tracker, require_trackers
from everstep.task.description import constant_rate
from everstep.task.initial.matching import Report
from everstep.task.optim.ema import find_average
from everstep.task.task import Task, unpack
from everstep.tracking import system_metrics
from everstep.tracking.console import ConsoleTracker, NoOutput
from everstep.tracking.system_metrics import watched
from everstep.tracking.terminal import wrapped
from everstep.types import Logs

logger = logging.getLogger(__name__)


@accepts_model_garden_order
def run_experiment(
    task: Task,
    params: ExperimentConfig,
    model_dir: str | Path,
    mode: str = Mode.TRAIN_AND_EVAL,
    *,
    distribution_strategy: Any = None,
    run_post_eval: bool = False,
    save_summary: bool = True,
    train_actions: Iterable[Action] = (),
    eval_actions: Iterable[Action] = (),
    trainer: Trainer | Callable[[ExperimentConfig], Trainer] | None = None,
    hooks: Iterable[Hook] = (),
    schedule: EpochSchedule | None = None,
    checkpoint: str | Path | None = None,
    init_fn: Callable[[keras.Model], None] | None = None,
    experiment: str = "",
    export: bool = True,
    verbose: bool | int = True,
    allow_change: Sequence[str] = (),
    header: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
    code_root: str | Path | None = None,
    keep: bool = True,
    at_end: Callable[[Run], None] | None = None,
) -> tuple[keras.Model, Logs]:
    """Trains or evaluates a task as configured by `params`, in one directory; the same call again resumes.

    Example:
        params = everstep.get_exp_config("mnist/mlp")
        task = everstep.get_task(params.task)
        model, logs = everstep.run_experiment(task, params, "runs/mlp")

    Args:
      task: The task.
      params: The experiment's configuration.
      model_dir: The run directory; or a URL such as `s3://bucket/run`, to which a local copy is uploaded.
      mode: What to do, a `Mode` or its name.
      distribution_strategy: What `get_distribution_strategy` returns, or any `tf.distribute` strategy; None for that
        of `params.runtime`.
      run_post_eval: Evaluate once more at the end, in any mode.
      save_summary: Whether to write TensorBoard events and `history.csv`.
      train_actions: Called with the logs after each training loop.
      eval_actions: Called with the logs after each evaluation.
      trainer: A trainer created by the caller instead of the default one, or a function that creates it from `params`.
      hooks: Further participants in the loop, see `everstep.loop.hooks.Hook`.
      schedule: Epochs, where windows, evaluations and saves follow them instead of the intervals in `params`.
      checkpoint: The checkpoint to evaluate, a directory named by its step, instead of the newest one. Nothing in
        the run changes: no actions are run.
      init_fn: Sets the model's initial weights instead of `task.initialize`; not called on resume.
      experiment: The experiment's registered name, for the record.
      export: Whether to export the model when training is done.
      verbose: Whether to print progress to standard error; 2 for all but the numbers.
      allow_change: Keys, such as `runtime.backend`, that a resumed run may change although they alter what it
        computes; a section covers its keys.
      header: Additional keys of `config.yaml`, so that the file repeats the run: `experiment`, `imports`, `gin`.
      record: Additional keys of `run.json`, under a name of the caller's own, or `data` for further fingerprints.
      code_root: The directory of the code to record; by default the working directory.
      keep: Whether the directory is kept; if not, no checkpoint and no record is written.
      at_end: Called with the run when training is done, while this process still holds the directory's lock. What it
        adds to the run's `record` is written with the end of the attempt.

    Returns:
      The model, and the logs of the last evaluation (of the last loop in mode `train`).

    Raises:
      UsageError: The request cannot be carried out; nothing was left behind.
      TrainingError: The run started and failed.
    """
    redaction.learn(params.as_dict())
    mode, say = Mode(mode), _say if verbose else _ignore
    _check(params, model_dir, distribution_strategy)
    training, evaluating = mode.trains, mode.evaluates or run_post_eval
    header = header or ({"experiment": experiment} if experiment else {})
    allow_change = [allow_change] if isinstance(allow_change, str) else list(allow_change)

    with contextlib.ExitStack() as stack:
        # Open the run: lock the directory, handle signals, open the checkpoints.
        stack.push(functools.partial(_announce_interruption, say if verbose else None, keep))
        directory = stack.enter_context(working_copy(model_dir, training, follow=mode is Mode.CONTINUOUS_EVAL))
        run = Run.open(directory, experiment or task.name, keras.backend.backend(), code_root=code_root, is_kept=keep)
        guard: Any = stack.enter_context(_guarded(run, params)) if training else NoGuard()
        stack.enter_context(entered(distribution_strategy or configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        checkpointer = stack.enter_context(_checkpoints(run, params.trainer, training, checkpoint))

        # Build: the configuration, compared with that of the newest checkpoint; the trainer; the loop around it.
        if training and params.trainer.optimizer_config.open_length is not None:
            params = params.replace(trainer=_with_schedule(params, task, checkpointer, say))
        stored = params.replace(runtime={"backend": keras.backend.backend()})
        changes = _changes(checkpointer, run, stored, allow_change, header) if training else []
        if callable(trainer):
            trainer = trainer(params)
        elif trainer is None:
            trainer = create_trainer(params, task, train=training, evaluate=evaluating)
        stack.callback(trainer.close)
        config = _trainer_in_steps(mode, params, task, trainer)
        params = params if config is params.trainer else params.replace(trainer=config)
        facts = LiveFacts(run, trainer)
        console = ConsoleTracker(
            config.train_steps or 0,
            None if verbose == 1 else NoOutput(),
            history=run.directory / "history.csv",
            facts=facts,
        )
        attempt = None
        if training:
            attempt = Attempt(run, trainer, _config_text(stored, header) if keep else "", allow_change)
        tracker = Throughput(create_tracker(run, stored, console, attempt, save_summary, trainer), trainer)
        if checkpoint is None:
            configured = ConfiguredActions(params, trainer, run.directory, mode)
            train_actions = [*configured.train_actions, *train_actions]
            eval_actions = [*configured.eval_actions, *eval_actions]
            hooks = [*hooks, configured]
        else:
            train_actions, eval_actions, hooks = (), (), []
        if attempt:
            hooks = [Progress(console, run, guard), *hooks, attempt, Profile(trainer, config, run.directory, say)]
            if not any(hook.name == LearningRate.name for hook in hooks):
                hooks.append(LearningRate(constant_rate(trainer.optimizer)))
        controller = _create_controller(
            config,
            trainer=trainer if training else None,
            evaluator=trainer,
            checkpointer=checkpointer if keep else None,
            tracker=tracker,
            train_actions=train_actions,
            eval_actions=eval_actions,
            hooks=[*hooks, facts],
            schedule=schedule,
            stop_requested=guard.stop_requested,
        )

        # Restore the newest checkpoint, or begin with the initial weights; report what is going to happen.
        step = None if checkpoint is None else int(Path(checkpoint).name)
        if _restore(controller, config, mode, init_fn or task.initialize, run, say, step) and training:
            _require_reachable(controller, schedule, config, stored.trainer)
            say(f"resumed at step {controller.step}, attempt {len(run.record['attempts']) + 1}")
        if training and (changed := run.changed_code()):
            say(f"the code has changed since the last attempt: {changed}")
        if verbose:
            _announce_changes(changes, trainer, say)
            evaluations = "at intervals" if mode is Mode.TRAIN_AND_EVAL else "at the end" if evaluating else "never"
            _announce_plan(controller, trainer, config, evaluations, say)
        if attempt and evaluating and checkpointer.latest() is None and config.sanity_validation_steps:
            _check_evaluation(controller, config.sanity_validation_steps, say)

        # Run.
        recorded: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if attempt:
            recorded = attempt.recorded(config.train_steps, changes, guard.last_beat)
        with recorded, contextlib.closing(tracker):
            if attempt:
                run.add({"mode": mode.value, **(record or {})})
            tracker.start(trainer.global_step)
            with watched(tracker, run.directory, config.tracking.system_seconds, lambda: trainer.global_step):
                logs = _run_mode(controller, mode, config, run_post_eval or mode is Mode.TRAIN_AND_POST_EVAL)
            trainer.close()

            # Finish: everything is trained and saved. If a stop is requested, the next attempt does the rest.
            measured = training and (keep or verbose)
            if measured and (figures := cost.measure(run.record, trainer, controller.training_time)):
                say(f"cost {figures}")
            if training and export:
                _raise_if_stop_requested(guard)
                _export(trainer, run.directory)
            if attempt and at_end is not None:
                _raise_if_stop_requested(guard)
                attempt.require_digests()
                at_end(run)
        _raise_if_stop_requested(guard)  # everything is done, but a requested stop still sets the exit code
        if training and len(run.record["attempts"]) > 1:
            say(f"goodput {goodput(run.record)}")
        return trainer.model, logs


def _announce_interruption(say: Callable[[str], None] | None, keeps: bool, kind: Any, error: Any, frames: Any) -> None:
    """Prints, after everything is saved, that a stop was requested, and marks the error as announced."""
    if isinstance(error, Interrupted):
        error.keeps = keeps
        if say is not None:
            say(f"everstep: {error.text}")
            error.announced = True


@contextlib.contextmanager
def _guarded(run: Run, params: ExperimentConfig) -> Iterator[Guard]:
    """Locks the directory; removes it again if this attempt created it and failed before its first step."""
    try:
        compiled = backend.keep_compiled(str(run.directory / ".compiled")) if run.is_kept else contextlib.nullcontext()
        with Guard(run.directory, params.runtime, run.is_kept) as guard, compiled:
            run.reload()
            yield guard
    except Interrupted:  # the next attempt uses what is there: compiled programs, the run's id
        raise
    except BaseException:
        run.discard()
        raise


@contextlib.contextmanager
def _checkpoints(
    run: Run, config: TrainerConfig, training: bool, checkpoint: str | Path | None
) -> Iterator[OrbaxCheckpointer]:
    """Opens the run's checkpoints, or those beside `checkpoint`; closes them at the end.

    A failed save does not hide an error that is being raised.
    """
    retention = Retention(
        newest=config.max_to_keep,
        every_steps=config.keep_steps,
        every_seconds=config.keep_seconds,
        best=config.keep_best,
        metric=config.best_checkpoint_eval_metric,
        mode=config.best_checkpoint_metric_comp,
    )
    run_id = run.id if training else run.recorded_id  # an evaluation may start before the trainer
    if checkpoint is not None:
        checkpointer = OrbaxCheckpointer(Path(checkpoint).parent, repair=False)
    else:
        checkpointer = OrbaxCheckpointer(run.directory / "checkpoints", retention, run_id, training, run.saved)
    try:
        yield checkpointer
    except BaseException as error:
        try:
            checkpointer.close()
        except SaveError as failure:
            logger.error("%s", failure)
        if isinstance(error, Interrupted):
            error.saved = checkpointer.latest()
        raise
    checkpointer.close()


def _check(params: ExperimentConfig, model_dir: Any, strategy: Any) -> None:
    if not model_dir:
        raise UsageError("expected a directory for the run", key="model_dir", received=model_dir)
    if strategy is not None and not hasattr(strategy, "scope"):
        reason = "expected what get_distribution_strategy returns, or None"
        raise UsageError(reason, key="distribution_strategy", received=strategy)
    params.validate()
    system_metrics.require(params.trainer.tracking.system_seconds)
    require_trackers(params.trainer.tracking)
    backend.select(params.runtime.backend)


def _changes(
    checkpointer: OrbaxCheckpointer, run: Run, params: ExperimentConfig, allow: list[str], header: Mapping[str, Any]
) -> list[Change]:
    """Returns the changes since the newest checkpoint was trained; refuses those that alter what the run computes."""
    if checkpointer.latest() is None:
        check_keys(run.directory, params, allow)
        return []
    used = _used_config(checkpointer)
    return accepted_changes(run.directory, params, allow, str(header.get("gin", "")), used)


def _used_config(checkpointer: OrbaxCheckpointer) -> str:
    """Returns the configuration that the newest checkpoint was trained with; empty if it is unknown."""
    return str(checkpointer.newest_meta().get("extra", {}).get(Attempt.name, {}).get("config", ""))


def _with_schedule(
    params: ExperimentConfig, task: Task, checkpointer: OrbaxCheckpointer, say: Callable[[str], None]
) -> TrainerConfig:
    """Returns the trainer's section with a learning-rate schedule as long as training, whose length is not set.

    A resumed run keeps the length that it began with, however long it is trained now.
    """
    config = params.trainer
    key = f"trainer.optimizer_config.{config.optimizer_config.open_length}"
    kept: Any = None
    if checkpointer.latest() is not None:
        kept = find_key(dialect.load(_used_config(checkpointer)), key)
    steps = _train_steps(params, task)
    if not isinstance(kept, int):
        return config.with_schedule(steps)
    new = config.with_schedule(kept + config.optimizer_config.learning_rate.get().offset)
    if config.with_schedule(steps) != new:
        say(f"the learning rate keeps its length of {kept} steps, with which the run began; {key} changes it")
    return new


def _train_steps(params: ExperimentConfig, task: Task) -> int | None:
    """Returns the number of training steps; epochs are converted by the length of the data."""
    config = params.trainer
    if config.train_steps is not None:
        return config.train_steps
    batches = config.overfit_batches or _training_data(params, task).batches_per_epoch
    return in_steps(config, batches).train_steps


def _trainer_in_steps(mode: Mode, params: ExperimentConfig, task: Task, trainer: Trainer) -> TrainerConfig:
    """Returns the trainer's section with all intervals in steps; unchanged where this mode uses none of them."""
    config = params.trainer
    if not mode.trains and (mode is Mode.EVAL or config.epochs is None):
        return config
    if config.overfit_batches is not None:
        return in_steps(config, config.overfit_batches)
    stream = _training_data(params, task) if trainer.train_stream is None else trainer.train_stream
    return in_steps(config, stream.batches_per_epoch, stream.counting)


def _training_data(params: ExperimentConfig, task: Task) -> Stream:
    """Returns the training data, to count its batches: continuous_eval needs to know when the trainer is done."""
    data = params.task.train_data.replace(is_training=True)
    data = data if data.seed is not None else data.replace(seed=params.runtime.seed)
    try:
        return make_stream(task.inputs_for(data), data, training=True, seed=params.runtime.seed)
    except UsageError as error:
        reason = f"needs the length of {{data}}: {error}"
        raise UsageError(reason, key="trainer.epochs", mentions={"data": "task.train_data"}) from error


def _create_controller(config: TrainerConfig, **parts: Any) -> Controller:
    """Returns the loop over `parts`, with the intervals and limits of the trainer's section, which is in steps."""
    return Controller(
        steps_per_loop=config.steps_per_loop,  # type: ignore[arg-type]
        checkpoint_interval=config.checkpoint_interval,  # type: ignore[arg-type]
        checkpoint_seconds=config.checkpoint_seconds,
        save_failure=config.save_failure,
        summary_interval=config.summary_interval,  # type: ignore[arg-type]
        recovery=Recovery(
            config.loss_upper_bound,
            config.recovery_begin_steps,
            config.recovery_max_trials,
            watched=getattr(parts["trainer"], "watched_log", "training_loss"),
        ),
        **parts,
    )


def _restore(
    controller: Controller,
    config: TrainerConfig,
    mode: Mode,
    initialize: Callable,
    run: Run,
    say: Callable[[str], None],
    step: int | None,
) -> bool:
    """Restores the newest checkpoint, or that of `step`; in a run without one, sets the model's initial weights.

    Returns:
      Whether a checkpoint was restored.
    """
    if mode is Mode.CONTINUOUS_EVAL:
        if controller.checkpointer.latest() is None:
            timeout = config.continuous_eval_timeout
            say(f"waiting up to {timeout} s for the first checkpoint in {str(run.directory)!r}")
        return False
    if controller.restore_checkpoint(step) is not None:
        return True
    controller.checkpointer.raise_if_all_damaged()
    if mode is Mode.EVAL:
        reason = f"there is no checkpoint to evaluate in {str(run.directory)!r}"
        raise UsageError(reason, remedy="train first, or check --model-dir")
    trainer = controller.trainer
    run.record["initial_weights"] = _reported(initialize(trainer.model), say)
    if (average := find_average(trainer.optimizer)) is not None:
        average.start()
    trainer.engine.pull()
    for report in run.record["initial_weights"]:
        report["sha256"] = weights_digest(trainer.engine.state())
    return False


def _require_reachable(
    controller: Controller, schedule: EpochSchedule | None, config: TrainerConfig, configured: TrainerConfig
) -> None:
    """Refuses a target that the restored run has passed already: training cannot be undone.

    Raises:
      UsageError: The run is beyond the target.
    """
    step = controller.step
    if schedule is not None:
        schedule.require_reachable(step, config.train_steps)
    elif step > (config.train_steps or 0):
        key = "train_steps" if configured.epochs is None else "epochs"
        raise UsageError(
            f"but this run has trained {step} steps already",
            key=f"trainer.{key}",
            received=getattr(configured, key),
            remedy=f"ask for {step} steps or more, or start a new run",
        )


def _reported(reports: Any, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Prints where initial weights came from, and returns it for the record; `reports` is one, several, or None.

    Incomplete files are not printed: the code that read them has warned already.
    """
    listed = [report for report in nest.flatten([reports]) if isinstance(report, Report)]
    for report in listed:
        for line in report.lines() if report.is_complete else ():
            say(line)
    return [report.as_dict() for report in listed]


def _announce_changes(changes: Iterable[Change], trainer: Trainer, say: Callable[[str], None]) -> None:
    for change in changes:
        if change.path.rpartition(".")[2] == "init_checkpoint":
            say(f"not used: {change}; the run resumes from its own checkpoint of step {trainer.global_step}")
        else:
            say(f"resuming with {change}")


def _announce_plan(
    controller: Controller, trainer: Trainer, config: TrainerConfig, evaluations: str, say: Callable[[str], None]
) -> None:
    """Prints what is about to be trained or evaluated: the model, a batch's shapes, the plan.

    Args:
      controller: The loop.
      trainer: The trainer with the model and the data.
      config: The trainer's section, in steps.
      evaluations: When evaluations run: `at intervals`, `at the end` or `never`.
      say: Called with each line.
    """
    saver = controller.saver
    if not trainer.engine.is_reused:  # else the call before has printed it
        trainer.model.summary(print_fn=lambda line, line_break=True: say(line), line_length=78)
    train, validation = (trainer.train_stream, trainer.train_example), (trainer.validation_stream, trainer.example)
    for kind, (stream, batch) in (("train", train), ("validation", validation)):
        if stream is not None:
            shapes = ", ".join(f"{path or 'x'} {leaf.dtype}{list(leaf.shape)}" for path, leaf in nest.walk(batch))
            per_epoch = f", {stream.batches_per_epoch} batches an epoch" if stream.batches_per_epoch else ""
            say(f"{kind} batch: {shapes}{per_epoch}")
            if kind in trainer.data_on_device:
                say(f"{kind} data is on the device: {trainer.data_on_device[kind]:,} bytes")
            if not saver.is_disabled and trainer.train_stream is not None and (weaker := stream.guarantee):
                say(f"the {kind} data does not resume exactly: {weaker}")
    if trainer.train_stream is None:
        return
    if config.train_steps is None:
        say(f"plan: {config.epochs:g} epochs; the first one counts their steps")
    elif trainer.global_step >= config.train_steps:
        say(f"nothing left to train: the run is at step {trainer.global_step} of {config.train_steps}")
    else:
        when = {"at intervals": f", evaluate every {config.validation_interval}", "at the end": ", evaluate at the end"}
        say(
            f"plan: steps {trainer.global_step} to {config.train_steps}, log every {config.steps_per_loop}"
            f"{when.get(evaluations, '')}, save every {config.checkpoint_interval or 'end of training'}"
        )
    if not (saver.interval or saver.seconds or saver.is_disabled):
        say("trainer.checkpoint_interval=0: nothing is saved before training is done, or a stop is requested")


def _check_evaluation(controller: Controller, steps: int, say: Callable[[str], None]) -> None:
    """Evaluates some batches before the first step, so that errors in the evaluation show at once."""
    begin = time.perf_counter()
    count = controller.try_evaluation(steps)
    batches = "1 batch" if count == 1 else f"{count} batches"
    say(f"sanity validation: evaluating works ({batches}, {time.perf_counter() - begin:.1f} s)")


def _run_mode(controller: Controller, mode: Mode, config: Any, post_eval: bool) -> Logs:
    """Runs a mode; `config` is the trainer's section, in steps."""
    if mode is Mode.EVAL:
        logs = controller.evaluate(config.validation_steps)
    elif mode is Mode.CONTINUOUS_EVAL:
        logs = controller.evaluate_continuously(
            config.validation_steps, config.continuous_eval_timeout, lambda: controller.step >= config.train_steps
        )
    elif mode is Mode.TRAIN_AND_EVAL:
        logs = controller.train_and_evaluate(config.train_steps, config.validation_steps, config.validation_interval)
    else:
        logs = controller.train(config.train_steps)
        if post_eval:
            logs = controller.evaluate(config.validation_steps)
    return logs


def _raise_if_stop_requested(guard: Any) -> None:
    if interrupted := guard.stop_requested():
        raise interrupted


def _ignore(line: str) -> None:
    """Prints nothing."""


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed pipe or terminal does not stop training
        text = redaction.text(line)
        print(text if "\n" in text else wrapped(text.split(" "), " ", sys.stderr), file=sys.stderr)


def _config_text(params: ExperimentConfig, header: Mapping[str, Any]) -> str:
    """Returns the text of `config.yaml`, which repeats the run; without secrets."""
    return dialect.dump(redaction.tree(dialect.escaped({**header, **params.as_dict()})))


def _export(trainer: Trainer, directory: Path) -> None:
    """Exports the model as it was evaluated: with averaged weights, if the optimizer keeps an average."""
    sample = sample_inputs(trainer.model, unpack(trainer.example)[0])
    with evaluated_weights(trainer.optimizer), random_state.untouched():
        written = export_all(trainer.model, directory / "export", sample)
    if not written:
        logger.warning(
            "the model is trained and saved, but not exported: fix what is reported above, then: everstep export %s",
            shlex.quote(str(directory)),
        )
