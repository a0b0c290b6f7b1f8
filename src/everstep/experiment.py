"""`run_experiment`: the page on which all parts come together.

It is a table of contents: open the run, build, restore, run, finish. Each is a method of `_Session`, in this order;
the functions that they call follow below, in the same order.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import redaction
from everstep.argument_order import accepts_model_garden_order, require_order
from everstep.checkpoint import (
    Checkpointer,
    OrbaxCheckpointer,
    Retention,
    SaveError,
    SharedCheckpointer,
    weights_digest,
)
from everstep.checkpoint.remote import working_copy
from everstep.config import Change, dialect, find_key
from everstep.data import Stream, make_stream, nest
from everstep.engine import backend, configured_strategy, entered, precision
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, Mode
from everstep.export import chosen_formats, evaluated_weights, export_all, sample_inputs
from everstep.gang import Gang, failing_together
from everstep.log_lines import handlers_kept
from everstep.loop import (
    Action,
    Controller,
    EpochSchedule,
    Hook,
    LearningRate,
    Recovery,
    Trainer,
    TrainerConfig,
    create_trainer,
    in_steps,
    random_state,
)
from everstep.loop.actions import ConfiguredActions
from everstep.run import (
    Attempt,
    Guard,
    Interrupted,
    LiveFacts,
    NoGuard,
    Profile,
    Progress,
    Run,
    Throughput,
    accepted_changes,
    check_keys,
    cost,
    create_tracker,
    goodput,
    processes,
    pruning_gates,
    require_trackers,
    with_samples,
)
from everstep.task import Task, constant_rate, unpack
from everstep.task.initial import Report
from everstep.task.optim import find_average, rate_table
from everstep.tracking import ConsoleTracker, NoopTracker, NoOutput, Tracker, system_metrics, watched, wrapped
from everstep.types import Logs

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EntryPoint:
    """What an entry point adds to a call of `run_experiment`: the command line, and `frontends/compiled.py`.

    Attributes:
      header: Additional keys of `config.yaml`, so that the file repeats the run: `experiment`, `imports`, `gin`.
      record: Additional keys of `run.json`, under a name of the entry point's own, or `data` for further fingerprints.
      code_root: The directory of the code to record; None for the working directory.
      schedule: Epochs, where windows, evaluations and saves follow them instead of the intervals in `params`; the plan
        and the lines of the console then count epochs.
      shows_layers: Whether the table of the model's layers is printed, or one line about the model.
      at_end: Called with the run when training is done, while this process still holds the directory's lock. What it
        adds to the run's `record` is written with the end of the attempt.
    """

    header: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    code_root: str | Path | None = None
    schedule: EpochSchedule | None = None
    shows_layers: bool = True
    at_end: Callable[[Run], None] | None = None


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
    checkpoint: str | Path | None = None,
    init_fn: Callable[[keras.Model], None] | None = None,
    experiment: str = "",
    export: bool | str | Sequence[str] = True,
    verbose: bool | int = True,
    allow_change: str | Sequence[str] = (),
    keep: bool = True,
    entry_point: EntryPoint | None = None,
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
      checkpoint: The checkpoint to evaluate, a directory named by its step, instead of the newest one. Nothing in
        the run changes: no actions are run.
      init_fn: Sets the model's initial weights instead of `task.initialize`; not called on resume.
      experiment: The experiment's registered name, for the record.
      export: Whether to export the model when training is done, in every format of the backend; or the formats, such
        as `["keras", "saved_model"]`.
      verbose: Whether to print progress to standard error; 2 for all but the numbers.
      allow_change: Keys, such as `runtime.backend`, that a resumed run may change although they alter what it
        computes; a section covers its keys.
      keep: Whether the directory is kept; if not, no checkpoint and no record is written.
      entry_point: What another entry point adds; not for programs.

    Returns:
      The model, and the logs of the last evaluation (of the last loop in mode `train`).

    Raises:
      UsageError: The request cannot be carried out; nothing was left behind.
      TrainingError: The run started and failed.
    """
    require_order(task, params)
    redaction.learn(params.as_dict())
    mode = Mode(mode)
    _check(params, model_dir, distribution_strategy)
    with failing_together():
        gang = backend.join_gang()
    session = _Session(
        task,
        params,
        mode,
        experiment,
        evaluates=mode.evaluates or run_post_eval,
        post_eval=run_post_eval or mode is Mode.TRAIN_AND_POST_EVAL,
        checkpoint=checkpoint,
        verbose=verbose if gang.is_first else False,
        allow_change=[allow_change] if isinstance(allow_change, str) else list(allow_change),
        keep=keep,
        entry_point=entry_point or EntryPoint(),
        gang=gang,
    )
    with failing_together(), handlers_kept(), contextlib.ExitStack() as stack:
        session.open(stack, model_dir, distribution_strategy)
        session.build(stack, trainer, hooks, train_actions, eval_actions, save_summary)
        formats = export if isinstance(export, bool) else chosen_formats(export, session.trainer.model)
        session.restore(init_fn or task.initialize)
        with session.recorded(), contextlib.closing(session.tracker):
            logs = session.run_mode()
            session.finish(formats)
        session.leave()
        return session.trainer.model, logs


@dataclasses.dataclass
class _Session:
    """One call of `run_experiment`: what it was called with, and the parts that its sections create."""

    task: Task
    params: ExperimentConfig
    mode: Mode
    experiment: str
    evaluates: bool
    post_eval: bool
    checkpoint: str | Path | None
    verbose: bool | int
    allow_change: list[str]
    keep: bool
    entry_point: EntryPoint
    gang: Gang
    """The processes that train this run; each of them runs a session, and the first one writes and prints."""

    # Created by `open`:
    run: Run = dataclasses.field(init=False)
    guard: Any = dataclasses.field(init=False)
    checkpointer: Checkpointer = dataclasses.field(init=False)
    # Created by `build`:
    changes: list[Change] = dataclasses.field(init=False)
    """Of the configuration, since the newest checkpoint was trained."""
    stored: ExperimentConfig = dataclasses.field(init=False)
    """The configuration as `config.yaml` has it, if there is one: with the backend, intervals as they were written."""
    trainer: Trainer = dataclasses.field(init=False)
    config: TrainerConfig = dataclasses.field(init=False)
    """The trainer's section with all intervals in steps."""
    attempt: Attempt | None = dataclasses.field(init=False)
    """Records this attempt; None where nothing is trained."""
    tracker: Tracker = dataclasses.field(init=False)
    controller: Controller = dataclasses.field(init=False)

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode.trains

    @property
    def header(self) -> Mapping[str, Any]:
        """Additional keys of `config.yaml`."""
        return self.entry_point.header or ({"experiment": self.experiment} if self.experiment else {})

    def say(self, line: str) -> None:
        """Prints a line, unless nothing is printed."""
        if self.verbose:
            _print(line)

    def open(self, stack: contextlib.ExitStack, model_dir: str | Path, strategy: Any) -> None:
        """Opens the run: locks the directory, handles signals, opens the checkpoints."""
        params, name = self.params, self.experiment or self.task.name
        stack.push(functools.partial(_announce_interruption, self.say if self.verbose else None, self.keep))
        following = self.mode is Mode.CONTINUOUS_EVAL
        shared = Path(stack.enter_context(working_copy(model_dir, self.trains, follow=following)))
        directory = stack.enter_context(processes.own_directory(self.gang, shared))
        code_root, writes = self.entry_point.code_root, self.keep and self.gang.is_first
        self.run = Run.open(directory, name, keras.backend.backend(), code_root=code_root, is_kept=writes)
        compiled = shared / ".compiled" if self.keep else None
        if self.trains and writes:
            self.run.start_reading_code()
        self.guard = stack.enter_context(_guarded(self.run, params, compiled)) if self.trains else NoGuard()
        processes.meet(self.gang, self.run, shared, self.mode, self.trains and self.keep)
        stack.enter_context(entered(strategy or configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        self.checkpointer = stack.enter_context(
            _checkpoints(self.run, shared, self.gang, params.trainer, self.trains, self.checkpoint)
        )

    def build(
        self,
        stack: contextlib.ExitStack,
        trainer: Trainer | Callable[[ExperimentConfig], Trainer] | None,
        hooks: Iterable[Hook],
        train_actions: Iterable[Action],
        eval_actions: Iterable[Action],
        save_summary: bool,
    ) -> None:
        """Builds the configuration, compared with that of the newest checkpoint; the trainer; the loop around it."""
        params = self.params
        if self.trains and params.trainer.optimizer_config.unset_lengths:
            new = _with_learning_rate_length(params, self.task, self.checkpointer, self.say)
            params = params.replace(trainer=new)
        self.stored, text = params, ""
        if self.keep or self.gang.size > 1:  # else nobody reads it, and it takes as long as a short training
            self.stored = params.replace(runtime={"backend": keras.backend.backend()})
            text = _config_text(self.stored, self.header)
        processes.agree_on_program(self.gang, text, self.run)
        self.changes = self._accepted_changes() if self.trains else []
        if callable(trainer):
            self.trainer = trainer(params)
        else:
            self.trainer = trainer or create_trainer(params, self.task, train=self.trains, evaluate=self.evaluates)
        stack.callback(self.trainer.close)
        self.config = _trainer_in_steps(self.mode, params, self.task, self.trainer)
        params = params if self.config is params.trainer else params.replace(trainer=self.config)
        facts = LiveFacts(self.run, self.trainer)
        console = ConsoleTracker(
            self.config.train_steps or 0,
            None if self.verbose == 1 else NoOutput(),
            history=self.run.directory / "history.csv",
            facts=facts,
            position=_epoch_position(self.entry_point.schedule),
        )
        recorded = text if self.keep else ""
        self.attempt = Attempt(self.run, self.trainer, recorded, self.allow_change) if self.trains else None
        processes.agree_on_data(self.gang, self.trainer)
        if self.gang.is_first:
            created = create_tracker(self.run, self.stored, console, self.attempt, save_summary, self.trainer)
            self.tracker = Throughput(created, self.trainer)
        else:
            self.tracker = with_samples(NoopTracker(), self.trainer, self.stored.trainer.tracking, save_summary)
        if self.checkpoint is None:
            configured = ConfiguredActions(params, self.trainer, self.run.directory, self.mode)
            train_actions = [*configured.train_actions, *train_actions]
            eval_actions = [*configured.eval_actions, *eval_actions]
            hooks = [*hooks, configured]
        else:
            train_actions, eval_actions, hooks = (), (), []
        self.controller = _create_controller(
            self.config,
            trainer=self.trainer if self.trains else None,
            evaluator=self.trainer,
            checkpointer=self.checkpointer if self.keep else None,
            tracker=self.tracker,
            train_actions=train_actions,
            eval_actions=eval_actions,
            hooks=[*self._with_own_hooks(hooks, console), facts],
            schedule=self.entry_point.schedule,
            stop_requested=self.guard.stop_requested,
            stop_agreed=self.guard.stop_agreed,
        )

    def _accepted_changes(self) -> list[Change]:
        return _changes(self.checkpointer, self.run, self.stored, self.allow_change, self.header)

    def _with_own_hooks(self, hooks: Iterable[Hook], console: ConsoleTracker) -> list[Hook]:
        """Returns the hooks and those of every attempt that trains; the order is that of their events."""
        if self.attempt is None:
            return list(hooks)
        progress = Progress(console, self.run, self.guard)
        profile = Profile(self.trainer, self.config, self.run.directory, self.say)
        found = [progress, *hooks, self.attempt, profile, *pruning_gates(self.guard.stop_requested)]
        if not any(hook.name == LearningRate.name for hook in found):
            found.append(LearningRate(constant_rate(self.trainer.optimizer)))
        return found

    def restore(self, initialize: Callable[..., Any]) -> None:
        """Restores the newest checkpoint, or begins with the initial weights; reports what is going to happen."""
        controller, config = self.controller, self.config
        step = None if self.checkpoint is None else int(Path(self.checkpoint).name)
        restored = _restore(controller, config, self.mode, initialize, self.run, self.say, step)
        if restored and self.trains:
            _require_reachable(controller, self.entry_point.schedule, config, self.stored.trainer)
            self.say(f"resumed at step {controller.step}, attempt {len(self.run.record['attempts']) + 1}")
        if self.trains and (changed := self.run.changed_code()):
            self.say(f"the code has changed since the last attempt: {changed}")
        if self.verbose:
            _announce_changes(self.changes, self.trainer, self.say)
            at_intervals = self.mode is Mode.TRAIN_AND_EVAL
            evaluations = "at intervals" if at_intervals else "at the end" if self.evaluates else "never"
            _announce_model(self.trainer, self.entry_point.shows_layers, self.say)
            _announce_plan(controller, self.trainer, config, evaluations, self.entry_point.schedule, self.say)
        is_new = self.checkpointer.latest() is None
        if self.attempt and self.evaluates and is_new and config.sanity_validation_steps:
            _check_evaluation(controller, config.sanity_validation_steps, self.say)

    def recorded(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the attempt is recorded, and how it ends."""
        if self.attempt is None:
            return contextlib.nullcontext()
        steps = _last_step(self.config, self.entry_point.schedule)
        extra = {"mode": self.mode.value, **(self.entry_point.record or {})}
        return self.attempt.recorded(steps, self.changes, self.guard.last_beat, extra)

    def run_mode(self) -> Logs:
        """Trains and evaluates as the mode says; returns the last logs."""
        run, trainer = self.run, self.trainer
        self.tracker.start(trainer.global_step)
        seconds = self.config.tracking.system_seconds
        with watched(self.tracker, run.directory, seconds, lambda: trainer.global_step):
            try:
                logs = _run_mode(self.controller, self.mode, self.config, self.post_eval)
            except BaseException:
                with contextlib.suppress(
                    RuntimeError
                ):  # the step that failed may have taken the state's arrays with it
                    trainer.engine.push()  # the model of an interrupted program is as far as its training
                raise
        trainer.close()
        return logs

    def finish(self, export: bool | Sequence[str]) -> None:
        """Measures and exports: everything is trained and saved. If a stop is requested, the next attempt does it.

        Args:
          export: Whether to export the model; or the formats.
        """
        measured = self.trains and (self.keep or self.verbose)
        if measured and (figures := cost.measure(self.run.record, self.trainer, self.controller.training_time)):
            self.say(f"cost {figures}")
        if self.trains and export:
            _raise_if_stop_requested(self.guard)
            with self.trainer.whole_model():
                if self.gang.is_first:
                    _export(self.trainer, self.run.directory, None if export is True else export)
        if self.attempt and self.entry_point.at_end is not None:
            _raise_if_stop_requested(self.guard)
            self.attempt.require_digests()
            with self.trainer.whole_model():
                if self.gang.is_first:
                    self.entry_point.at_end(self.run)

    def leave(self) -> None:
        """Reports how much of the work was kept, when the attempt is recorded; waits for the other processes."""
        _raise_if_stop_requested(self.guard)  # everything is done, but a requested stop still sets the exit code
        if self.trains and len(self.run.record["attempts"]) > 1:
            self.say(f"goodput {goodput(self.run.record)}")
        self.gang.barrier("the end")


def _announce_interruption(say: Callable[[str], None] | None, keeps: bool, kind: Any, error: Any, frames: Any) -> None:
    """Prints, after everything is saved, that a stop was requested, and marks the error as announced."""
    if isinstance(error, Interrupted):
        error.keeps = keeps
        if say is not None:
            say(f"everstep: {error.text}")
            error.announced = True


@contextlib.contextmanager
def _guarded(run: Run, params: ExperimentConfig, compiled: Path | None) -> Iterator[Guard]:
    """Locks the directory; removes it again if this attempt created it and failed before its first step."""
    try:
        kept = contextlib.nullcontext() if compiled is None else backend.keep_compiled(str(compiled))
        with Guard(run.directory, params.runtime, run.is_kept) as guard, kept:
            run.reload()
            yield guard
    except Interrupted:  # the next attempt uses what is there: compiled programs, the run's id
        raise
    except BaseException:
        run.discard()
        raise


@contextlib.contextmanager
def _checkpoints(
    run: Run, directory: Path, gang: Gang, config: TrainerConfig, training: bool, checkpoint: str | Path | None
) -> Iterator[Checkpointer]:
    """Opens the checkpoints in the run's directory, or those beside `checkpoint`; closes them at the end.

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
    folder = directory / "checkpoints" if checkpoint is None else Path(checkpoint).parent
    checkpointer: Checkpointer
    if checkpoint is not None:
        checkpointer = OrbaxCheckpointer(folder, repair=False)
    else:
        checkpointer = OrbaxCheckpointer(folder, retention, run_id, training and gang.is_first, run.saved)
    if gang.size > 1:
        checkpointer = SharedCheckpointer(checkpointer, gang, folder)
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
    checkpointer: Checkpointer, run: Run, params: ExperimentConfig, allow: list[str], header: Mapping[str, Any]
) -> list[Change]:
    """Returns the changes since the newest checkpoint was trained; refuses those that alter what the run computes."""
    if checkpointer.latest() is None:
        check_keys(run.directory, params, allow)
        return []
    used = _used_config(checkpointer)
    return accepted_changes(run.directory, params, allow, str(header.get("gin", "")), used)


def _used_config(checkpointer: Checkpointer) -> str:
    """Returns the configuration that the newest checkpoint was trained with; empty if it is unknown."""
    return str(checkpointer.newest_meta().get("extra", {}).get(Attempt.name, {}).get("config", ""))


def _with_learning_rate_length(
    params: ExperimentConfig, task: Task, checkpointer: Checkpointer, say: Callable[[str], None]
) -> TrainerConfig:
    """Returns the trainer's section with a learning-rate schedule as long as training, and the steps of its warmup.

    A resumed run keeps the lengths that it began with, however long it is trained now.
    """
    config = params.trainer
    new = config.with_learning_rate_length(_train_steps(params, task))
    used = dialect.load(_used_config(checkpointer)) if checkpointer.latest() is not None else {}
    for length in config.optimizer_config.unset_lengths:
        key = f"trainer.optimizer_config.{length}"
        kept = find_key(used, key)
        if isinstance(kept, int) and kept != find_key(new.optimizer_config, length):
            section, kind, field = length.split(".")
            new = new.replace(optimizer_config={section: {kind: {field: kept}}})
            what = "warmup" if section == "warmup" else "learning rate"
            say(f"the {what} keeps its length of {kept} steps, with which the run began; {key} changes it")
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
            watched=parts["evaluator"].watched_log,
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


def _epoch_position(schedule: EpochSchedule | None) -> Callable[[int], str] | None:
    """Returns a function that tells in a line of the console which epoch a step belongs to; None without epochs."""
    if schedule is None:
        return None
    width = len(str(schedule.epochs))
    return lambda step: f"epoch: {schedule.epoch_number(step):{width}d}/{schedule.epochs}"


def _announce_model(trainer: Trainer, shows_layers: bool, say: Callable[[str], None]) -> None:
    """Prints the table of the model's layers, or one line, unless the call before has printed it."""
    if trainer.engine.is_reused:
        return
    model = trainer.model
    if shows_layers:
        model.summary(print_fn=lambda line, line_break=True: say(line), line_length=78)
        return
    trainable = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    parameters = f"{model.count_params():,} parameters, {trainable:,} of them trainable"
    say(f"model: {model.name}, layers: {len(model.layers)}, {parameters}")


def _last_step(config: TrainerConfig, schedule: Any) -> int | None:
    """Returns the step at which training ends; None while that is unknown. A schedule of no epochs ends at once."""
    return config.train_steps if None in (schedule, config.train_steps) else schedule.target(config.train_steps)


def _announce_plan(
    controller: Controller,
    trainer: Trainer,
    config: TrainerConfig,
    evaluations: str,
    schedule: EpochSchedule | None,
    say: Callable[[str], None],
) -> None:
    """Prints what is about to be trained or evaluated: a batch's shapes, the plan.

    Args:
      controller: The loop.
      trainer: The trainer with the model and the data.
      config: The trainer's section, in steps.
      evaluations: When evaluations run: `at intervals`, `at the end` or `never`.
      schedule: Epochs, where they decide; None for the intervals of `config`.
      say: Called with each line.
    """
    saver = controller.saver
    train, validation = (trainer.train_stream, trainer.train_example), (trainer.validation_stream, trainer.example)
    for kind, (stream, batch) in (("train", train), ("validation", validation)):
        if stream is not None:
            shapes = ", ".join(f"{path or 'x'} {leaf.dtype}{list(leaf.shape)}" for path, leaf in nest.walk(batch))
            per_epoch = f", {stream.batches_per_epoch} batches an epoch" if stream.batches_per_epoch else ""
            say(f"{kind} batch: {shapes}{per_epoch}")
            for note in stream.notes:
                say(f"{kind} data: {note}")
            if trainer.engine.own_rows is not None and not stream.reads_rows:
                say(f"of the {kind} data every process reads whole batches, and keeps its rows")
            if kind in trainer.data_on_device:
                say(f"{kind} data is on the device: {trainer.data_on_device[kind]:,} bytes")
            if not saver.is_disabled and trainer.train_stream is not None and (weaker := stream.why_not_exact):
                say(f"the {kind} data does not resume exactly: {weaker}")
    if trainer.train_stream is None:
        return
    steps = _last_step(config, controller.schedule)
    if steps is None:
        say(f"plan: {config.epochs:g} epochs; the first one counts their steps")
    elif trainer.global_step >= steps and schedule is not None:
        say(f"nothing left to train: the run has done {schedule.epoch_number(trainer.global_step)} epochs")
    elif trainer.global_step >= steps:
        say(f"nothing left to train: the run is at step {trainer.global_step} of {steps}")
    elif controller.stopped and controller.progress.target >= steps:
        reason = f"the run was stopped at step {trainer.global_step}: {controller.stopped}"
        say(f"nothing left to train: {reason}. To train it further, ask for more steps or epochs")
    elif schedule is not None and schedule.full_epoch_steps is not None:
        every = max(1, (config.validation_interval or 0) // schedule.full_epoch_steps)  # type: ignore[operator]
        often = "every epoch" if every == 1 else f"every {every} epochs"
        say(
            f"plan: epochs {schedule.epoch_of(trainer.global_step)} to {schedule.epochs} of "
            f"{schedule.full_epoch_steps} steps{f', evaluate {often}' if evaluations == 'at intervals' else ''}"
            f"{', save every epoch' if config.checkpoint_interval else ''}"
        )
    else:
        when = {"at intervals": f", evaluate every {config.validation_interval}", "at the end": ", evaluate at the end"}
        say(
            f"plan: steps {trainer.global_step} to {steps}, log every {config.steps_per_loop}"
            f"{when.get(evaluations, '')}, save every {config.checkpoint_interval or 'end of training'}"
        )
    for optimizer in trainer.engine.optimizers:
        if table := rate_table(optimizer):
            say(f"factors of the learning rate:\n{table}")
    if late := config.optimizer_config.late_warmup:
        say(f"trainer.optimizer_config.{late}: the schedule ends before; the learning rate stays below its last value")
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
    if interrupted := guard.stop_agreed():
        raise interrupted


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed pipe or terminal does not stop training
        text = redaction.text(line)
        print(text if "\n" in text else wrapped(text.split(" "), " ", sys.stderr), file=sys.stderr)


def _config_text(params: ExperimentConfig, header: Mapping[str, Any]) -> str:
    """Returns the text of `config.yaml`, which repeats the run; without secrets."""
    return dialect.dump(redaction.tree(dialect.escaped({**header, **params.as_dict()})))


def _export(trainer: Trainer, directory: Path, formats: Sequence[str] | None) -> None:
    """Exports the model as it was evaluated: with averaged weights, if the optimizer keeps an average."""
    written = []
    try:
        sample = sample_inputs(trainer.model, unpack(trainer.example)[0])
    except UsageError as error:
        logger.warning("not exported: %s", error)
    else:
        with evaluated_weights(trainer.optimizer), random_state.untouched():
            written = export_all(trainer.model, directory / "export", sample, formats)
    if not written:
        logger.warning(
            "the model is trained and saved, but not exported: fix what is reported above, then: everstep export %s",
            shlex.quote(str(directory)),
        )
