"""`run_experiment`: the page on which all parts come together.

It is a table of contents: prepare, open the run, build, restore, run, finish. Each is a method of `_Session`, in this
order; what it calls is in the room that its import names.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import redaction
from everstep.argument_order import accepts_model_garden_order, require_order
from everstep.checkpoint import Checkpointer
from everstep.checkpoint.remote import working_copy
from everstep.config import Change
from everstep.data import class_names
from everstep.engine import backend, configured_strategy, entered, precision
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, Mode
from everstep.export import chosen_formats
from everstep.gang import Gang, barrier, failing_together
from everstep.log_lines import handlers_kept
from everstep.loop import (
    Action,
    Actions,
    Controller,
    EpochSchedule,
    Hook,
    Schedule,
    StepSchedule,
    Trainer,
    TrainerConfig,
    create_controller,
    create_trainer,
    trainer_in_steps,
    with_learning_rate_length,
)
from everstep.loop.actions import ConfiguredActions
from everstep.run import (
    Attempt,
    ChangeRefused,
    Labels,
    LiveFacts,
    Run,
    all_refusals,
    announcements,
    changes_since_newest,
    config_text,
    cost,
    create_tracker,
    export_trained,
    goodput,
    guarded,
    is_repetition,
    opened_checkpoints,
    print_line,
    processes,
    program_run,
    record_ending,
    require_trackers,
    restore_or_initialize,
    stopped_early,
    trained_config,
    with_attempt_hooks,
)
from everstep.task import Task
from everstep.tracking import ConsoleTracker, NoOutput, Tracker, watched
from everstep.types import Logs


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
      labels: What people call the run; with a name of its own where it is a run of no experiment.
      at_end: Called with the run when training is done, while this process still holds the directory's lock. What it
        adds to the run's `record` is written with the end of the attempt.
    """

    header: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    code_root: str | Path | None = None
    schedule: EpochSchedule | None = None
    shows_layers: bool = True
    labels: Labels = Labels()
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
      verbose: Whether to print progress to standard error, or below a notebook's cell; 2 for all but the numbers.
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
    if entry_point is None and model_dir and keep:  # a user's program
        placed = program_run(model_dir)
        model_dir, entry_point = placed.directory, EntryPoint(record=placed.record())
        allow_change = placed.allowed(allow_change)
    session = _Session(
        task,
        params,
        Mode(mode),
        experiment,
        run_post_eval=run_post_eval,
        checkpoint=checkpoint,
        verbose=verbose,
        allow_change=[allow_change] if isinstance(allow_change, str) else list(allow_change),
        keep=keep,
        entry_point=entry_point or EntryPoint(),
    )
    session.prepare(model_dir, distribution_strategy)
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
    """The configuration; from `build` on with the length of its learning-rate schedule."""
    mode: Mode
    experiment: str
    run_post_eval: bool
    checkpoint: str | Path | None
    verbose: bool | int
    allow_change: list[str]
    keep: bool
    entry_point: EntryPoint

    # Created by `prepare`:
    gang: Gang = dataclasses.field(init=False)
    """The processes that train this run; each of them runs a session, and the first one writes and prints."""
    # Created by `open`:
    run: Run = dataclasses.field(init=False)
    guard: Any = dataclasses.field(init=False)
    checkpointer: Checkpointer = dataclasses.field(init=False)
    # Created by `build`:
    stored: ExperimentConfig = dataclasses.field(init=False)
    """The configuration as `config.yaml` has it, if there is one: with the backend, intervals as they were written."""
    changes: list[Change] = dataclasses.field(init=False)
    """Of the configuration, since the newest checkpoint was trained."""
    trainer: Trainer = dataclasses.field(init=False)
    config: TrainerConfig = dataclasses.field(init=False)
    """The trainer's section with all intervals in steps."""
    schedule: Schedule = dataclasses.field(init=False)
    attempt: Attempt | None = dataclasses.field(init=False)
    """Records this attempt; None where nothing is trained."""
    tracker: Tracker = dataclasses.field(init=False)
    controller: Controller = dataclasses.field(init=False)

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode.trains

    @property
    def evaluates(self) -> bool:
        """Whether anything is evaluated."""
        return self.mode.evaluates or self.run_post_eval

    @property
    def header(self) -> Mapping[str, Any]:
        """Additional keys of `config.yaml`."""
        return self.entry_point.header or ({"experiment": self.experiment} if self.experiment else {})

    def say(self, line: str) -> None:
        """Prints a line, unless nothing is printed."""
        if self.verbose:
            print_line(line)

    def prepare(self, model_dir: str | Path, strategy: Any) -> None:
        """Checks the request, before anything is written; selects the backend, and joins the other processes."""
        if not model_dir:
            raise UsageError("expected a directory for the run", key="model_dir", received=model_dir)
        if strategy is not None and not hasattr(strategy, "scope"):
            reason = "expected what get_distribution_strategy returns, or None"
            raise UsageError(reason, key="distribution_strategy", received=strategy)
        if is_repetition():
            self.params = self.params.replace()
            self.params.trainer.tracking = self.params.trainer.tracking.without_servers()
        self.params.validate()
        require_trackers(self.params.trainer.tracking)
        backend.select(self.params.runtime.backend)
        with failing_together():
            self.gang = backend.join_gang()
        if not self.gang.is_first:
            self.verbose = False

    def open(self, stack: contextlib.ExitStack, model_dir: str | Path, strategy: Any) -> None:
        """Opens the run: locks the directory, handles signals, opens the checkpoints."""
        params, labels = self.params, self.entry_point.labels
        name = self.experiment or ("" if labels.default_name else self.task.name)
        stack.enter_context(announcements.interruption_announced(self.say if self.verbose else None, self.keep))
        following = self.mode is Mode.CONTINUOUS_EVAL
        shared = Path(stack.enter_context(working_copy(model_dir, self.trains, follow=following)))
        directory = stack.enter_context(processes.own_directory(self.gang, shared))
        code_root, writes = self.entry_point.code_root, self.keep and self.gang.is_first
        backend_name = keras.backend.backend()
        self.run = Run.open(directory, name, backend_name, code_root=code_root, is_kept=writes, labels=labels)
        compiled = shared / ".compiled" if self.keep else None
        if self.trains and writes:
            self.run.start_reading_code()
        self.guard = stack.enter_context(guarded(self.run, params.runtime, compiled, self.trains))
        processes.meet(self.gang, self.run, shared, self.mode, self.trains and self.keep)
        stack.enter_context(entered(strategy or configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        self.checkpointer = stack.enter_context(
            opened_checkpoints(self.run, shared, self.gang, params.trainer, self.trains, self.checkpoint)
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
        try:
            text = self._configure()
        except ChangeRefused as refused:
            raise self._complete(refused, trainer, hooks) from None
        self.trainer = self._create_trainer(trainer)
        stack.callback(self.trainer.close)
        self._plan_windows()
        self.attempt = Attempt(self.run, self.trainer, text, self.allow_change) if self.trains else None
        processes.agree_on_data(self.gang, self.trainer)
        facts = LiveFacts(self.run, self.trainer)
        console = ConsoleTracker(
            self.config.train_steps or 0,
            None if self.verbose == 1 else NoOutput(),
            history=self.run.directory / "history.csv",
            facts=facts,
            position=self.schedule.position,
        )
        self.tracker = create_tracker(
            self.gang, self.run, self.stored, console, self.attempt, save_summary, self.trainer
        )
        if self.checkpoint is None:
            in_steps = self.config is self.params.trainer
            params = self.params if in_steps else self.params.replace(trainer=self.config)
            configured = ConfiguredActions(params, self.trainer, self.run.directory, self.mode)
            last = configured.last_actions
            after_windows = [*configured.train_actions, *train_actions, *last]
            after_evaluations = [*configured.eval_actions, *eval_actions, *last]
            hooks = [Actions(after_windows, after_evaluations), *hooks, configured]
        else:
            hooks = []
        if self.attempt is not None:
            hooks = with_attempt_hooks(
                hooks, self.run, self.guard, self.attempt, self.trainer, self.config, console, self.say
            )
        self.controller = create_controller(
            self.config,
            self.trainer,
            self.trains,
            checkpointer=self.checkpointer if self.keep else None,
            tracker=self.tracker,
            hooks=[*hooks, facts],
            schedule=self.schedule,
            stop_requested=self.guard.stop_requested,
            stop_agreed=self.guard.stop_agreed,
            request_stop=self.guard.request_stop,
        )

    def _create_trainer(self, trainer: Trainer | Callable[[ExperimentConfig], Trainer] | None) -> Trainer:
        if callable(trainer):
            return trainer(self.params)
        return trainer or create_trainer(self.params, self.task, self.trains, self.evaluates)

    def _complete(self, refused: ChangeRefused, trainer: Any, hooks: Iterable[Hook]) -> ChangeRefused:
        """Returns the refusal with everything else that differs from the run, as far as the rest can be built."""
        if self.gang.size > 1:  # building takes all processes, and each of them must then refuse the same
            return refused
        with contextlib.suppress(Exception), contextlib.closing(self._create_trainer(trainer)) as built:
            return all_refusals(refused, str(self.run.directory), self.checkpointer, built, hooks, self.allow_change)
        return refused

    def _configure(self) -> str:
        """Completes the configuration, and compares it with former ones; returns the text that a kept run records."""
        if self.trains:
            used = trained_config(self.checkpointer.newest_meta())
            self.params = with_learning_rate_length(self.params, self.task, used, self.say)
        self.stored, text = self.params, ""
        if self.keep or self.gang.size > 1:  # else nobody reads it, and it takes as long as a short training
            self.stored = self.params.replace(runtime={"backend": keras.backend.backend()})
            text = config_text(self.stored, self.header)
        processes.agree_on_program(self.gang, text, self.run)
        self.changes = []
        if self.trains:
            gin = str(self.header.get("gin", ""))
            self.changes = changes_since_newest(self.checkpointer, self.run, self.stored, self.allow_change, gin)
        return text if self.keep else ""

    def _plan_windows(self) -> None:
        """Converts epochs to steps, where the mode needs that, and decides where windows end."""
        in_epochs, config = self.params.trainer.epochs is not None, self.params.trainer
        if self.trains or (self.mode is Mode.CONTINUOUS_EVAL and in_epochs):
            config = trainer_in_steps(self.params, self.task, self.trainer)
        interval: Any = config.validation_interval if self.mode is Mode.TRAIN_AND_EVAL else None
        steps: Any = config.steps_per_loop
        self.config = config
        stream = self.trainer.train_stream
        batches = None if stream is None else stream.batches_per_epoch
        epochs = self.params.trainer.epochs
        if epochs is not None and config.train_steps != round(epochs * (batches or 0)):
            batches = None  # the length was not taken from this data alone
        self.schedule = self.entry_point.schedule or StepSchedule(steps, interval, epochs, batches)

    def restore(self, initialize: Callable[..., Any]) -> None:
        """Restores the newest checkpoint, or begins with the initial weights; reports what is going to happen."""
        controller, config, is_new = self.controller, self.config, self.checkpointer.latest() is None
        if self.mode is Mode.CONTINUOUS_EVAL:
            if is_new:
                timeout = config.continuous_eval_timeout
                self.say(f"waiting up to {timeout} s for the first checkpoint in {str(self.run.directory)!r}")
        else:
            step = None if self.checkpoint is None else int(Path(self.checkpoint).name)
            restored = restore_or_initialize(controller, initialize, self.run, self.say, step)
            if restored and self.trains:
                self.schedule.require_reachable(controller.step, config.train_steps)
                attempt, epochs = len(self.run.record["attempts"]) + 1, self.schedule.trained(controller.step)
                self.say(f"resumed at step {controller.step}, attempt {attempt}{f' ({epochs})' if epochs else ''}")
        if self.trains and (changed := self.run.changed_code()):
            self.say(f"the code has changed since the last attempt: {changed}")
        if self.verbose:
            self._announce()
        if self.attempt and self.evaluates and is_new and config.sanity_validation_steps:
            self._try_evaluation(config.sanity_validation_steps)

    def _announce(self) -> None:
        at_intervals = self.mode is Mode.TRAIN_AND_EVAL
        evaluations = "at intervals" if at_intervals else "at the end" if self.evaluates else "never"
        announcements.announce_changes(self.changes, self.trainer, self.say)
        announcements.announce_model(self.trainer, self.entry_point.shows_layers, self.say)
        announcements.announce_data(self.trainer, not self.controller.saver.is_disabled, self.say)
        if self.trainer.train_stream is not None:
            announcements.announce_plan(
                self.controller, self.trainer, self.schedule, self.config, evaluations, self.say
            )

    def _try_evaluation(self, steps: int) -> None:
        """Evaluates some batches before the first step, so that errors in the evaluation show at once."""
        begin = time.perf_counter()
        count = self.controller.try_evaluation(steps)
        batches = "1 batch" if count == 1 else f"{count} batches"
        self.say(f"sanity validation: evaluating works ({batches}, {time.perf_counter() - begin:.1f} s)")

    def recorded(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the attempt is recorded, and how it ends."""
        if self.attempt is None:
            return contextlib.nullcontext()
        sources = self.task, self.task.task_config, self.trainer.train_stream
        classes = next(filter(None, map(class_names, sources)), None)
        named = {"classes": classes} if classes else {}
        further = {"mode": self.mode.value, **named, **(self.entry_point.record or {})}
        end = self.schedule.last_step(self.config.train_steps)
        return self.attempt.recorded(end, self.changes, self.guard.last_beat, further)

    def run_mode(self) -> Logs:
        """Trains and evaluates as the mode says; returns the last logs."""
        trainer, seconds = self.trainer, self.config.tracking.system_seconds
        self.tracker.start(trainer.global_step)
        with watched(self.tracker, self.run.directory, seconds, lambda: trainer.global_step):
            try:
                logs = self._train_and_evaluate()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a failed step may have taken the state's arrays with it
                    trainer.push()  # the model of an interrupted program is as far as its training
                raise
        trainer.close()
        return logs

    def _train_and_evaluate(self) -> Logs:
        controller, config, mode = self.controller, self.config, self.mode
        if mode is Mode.EVAL:
            return controller.evaluate(config.validation_steps)
        if mode is Mode.CONTINUOUS_EVAL:
            timeout, last = config.continuous_eval_timeout, config.train_steps or 0
            return controller.evaluate_continuously(config.validation_steps, timeout, lambda: controller.step >= last)
        if mode is Mode.TRAIN_AND_EVAL:
            return controller.train_and_evaluate(config.train_steps, config.validation_steps)
        logs = controller.train(config.train_steps)
        if self.run_post_eval or mode is Mode.TRAIN_AND_POST_EVAL:
            logs = controller.evaluate(config.validation_steps)
        return logs

    def finish(self, export: bool | Sequence[str]) -> None:
        """Measures and exports: everything is trained and saved. If a stop is requested, the next attempt does it.

        Args:
          export: Whether to export the model; or the formats.
        """
        measured = self.trains and (self.keep or self.verbose)
        if measured and (figures := cost.measure(self.run.record, self.trainer, self.controller.training_time)):
            self.say(f"cost {figures}")
        exported = False
        if self.trains and export:
            self._raise_if_stop_requested()
            with self.trainer.whole_model():
                if self.gang.is_first:
                    exported = export_trained(self.trainer, self.run.directory, None if export is True else export)
        if self.trains:
            record_ending(self.run, self.controller, self.schedule, exported)
            if (line := stopped_early(self.run.record)) and self.controller.training_time[0]:
                self.say(f"{line}: {self.controller.stopped}")
        if self.attempt and self.entry_point.at_end is not None:
            self._raise_if_stop_requested()
            self.attempt.require_digests()
            with self.trainer.whole_model():
                if self.gang.is_first:
                    self.entry_point.at_end(self.run)

    def leave(self) -> None:
        """Reports how much of the work was kept, when the attempt is recorded; waits for the other processes."""
        self._raise_if_stop_requested()  # everything is done, but a requested stop still sets the exit code
        if self.trains and len(self.run.record["attempts"]) > 1:
            self.say(f"goodput {goodput(self.run.record)}")
        barrier(self.gang, "the end")

    def _raise_if_stop_requested(self) -> None:
        if interrupted := self.guard.stop_agreed():
            raise interrupted
