"""`run_experiment`: the one page that shows all parts joined."""

import contextlib
import functools
import io
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import redaction
from everstep.actions.from_config import ConfiguredActions
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.config import dialect
from everstep.config.difference import Change
from everstep.data import nest
from everstep.data.source import make_stream
from everstep.data.special import first_samples
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.precision import precision
from everstep.engine.strategy import configured_strategy, entered
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, check_mode
from everstep.export.folder import export_all
from everstep.loop import random_state
from everstep.loop.announce import announce
from everstep.loop.config import TrainerConfig
from everstep.loop.controller import Action, Controller
from everstep.loop.creation import create_trainer
from everstep.loop.from_config import controller_settings, retention
from everstep.loop.in_steps import in_steps
from everstep.loop.learning_rate import LearningRate
from everstep.loop.trainer import Trainer
from everstep.optim.ema import find_average
from everstep.remote.working import working_copy
from everstep.run import cost, key_path
from everstep.run.attempt import Attempt
from everstep.run.changes import accepted_changes, check_keys
from everstep.run.digest import weights_digest
from everstep.run.goodput import goodput
from everstep.run.guard import Guard, NoGuard
from everstep.run.live_facts import LiveFacts
from everstep.run.profiling import Profile
from everstep.run.record import Run
from everstep.run.signals import Interrupted
from everstep.run.throughput import Throughput
from everstep.run.trackers import create_tracker, require_trackers
from everstep.task.description import constant_rate
from everstep.task.initial.report import Report
from everstep.task.task import Task, unpack
from everstep.tracking import system_metrics
from everstep.tracking.console import ConsoleTracker
from everstep.tracking.system_monitor import watched
from everstep.tracking.terminals import wrapped
from everstep.types import Logs

logger = logging.getLogger(__name__)


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
    trainer: Trainer | Callable[[ExperimentConfig], Trainer] | None = None,
    controller_cls: Callable[..., Controller] = Controller,
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
    """Trains or evaluates a task as `params` say, in one directory; run again, it resumes.

    Example:
        params = everstep.get_exp_config("mnist/mlp")
        task = everstep.get_task(params.task)
        model, logs = everstep.run_experiment(None, task, "train_and_eval", params, "runs/mlp")

    Args:
      distribution_strategy: What `get_distribution_strategy` returns, or any `tf.distribute` strategy; None for what
        `params.runtime` says.
      task: The task.
      mode: One of `train`, `eval`, `train_and_eval`, `train_and_post_eval`, `continuous_eval`.
      params: The experiment's configuration.
      model_dir: The run directory; or a URL such as `s3://bucket/run`, to which a local copy is uploaded.
      run_post_eval: Evaluate once after whatever the mode does.
      save_summary: Whether to write TensorBoard events and `history.csv`.
      train_actions: Called with the logs after each training loop.
      eval_actions: Called with the logs after each evaluation.
      trainer: A trainer made by the caller instead of the default one, or a function that makes it of `params`.
      controller_cls: The outer loop.
      init_fn: Gives the model its initial weights instead of `task.initialize`; not called on resume.
      experiment: The experiment's registered name, for the record.
      export: Whether to export the model when training is done.
      verbose: Whether to tell a person, on standard error, what is going on; 2 for all but the numbers.
      allow_change: Keys, such as `runtime.backend`, that a resumed run may change although they alter what it
        computes; one that holds others covers them.
      header: What `config.yaml` says beside the values, so that it repeats the run: `experiment`, `imports`, `gin`.
      record: What `run.json` says of the run beside what it finds out itself: under a name of the caller's own, or
        `data` for further fingerprints.
      code_root: Where the code is that the run is made of; by default the working directory.
      keep: Whether the directory is looked at afterwards; where it is thrown away, no record is written.
      at_end: Called with the run when training is done: what belongs to it beyond training, done while the directory
        is still this process's alone. What it puts into the run's `record` is written with the end of the attempt.

    Returns:
      The model, and the logs of the last evaluation (of the last loop in mode `train`).

    Raises:
      UsageError: The request cannot be carried out; nothing was left behind.
      TrainingError: The run started and failed.
    """
    redaction.learn(params.as_dict())
    say = _say if verbose else lambda line: None
    _check(mode, params, model_dir, distribution_strategy)
    training, evaluating = "train" in mode, "eval" in mode or run_post_eval
    header = header or ({"experiment": experiment} if experiment else {})
    with contextlib.ExitStack() as stack:
        stack.push(functools.partial(_tell_of_interruption, say if verbose else None, keep))
        directory = stack.enter_context(working_copy(model_dir, training, follow=mode == "continuous_eval"))
        run = Run.open(directory, experiment or task.name, keras.backend.backend())
        run.is_kept = keep
        run.code_root = run.code_root if code_root is None else Path(code_root)
        guard: Any = stack.enter_context(_guarded(run, params)) if training else NoGuard()
        stack.enter_context(entered(distribution_strategy or configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        checkpointer = stack.enter_context(_checkpoints(run, params.trainer, training))
        if training and params.trainer.optimizer_config.open_length is not None:
            params = params.replace(trainer=_with_schedule(params, task, checkpointer, say))
        stored = params.replace(runtime={"backend": keras.backend.backend()})
        changes = _changes(checkpointer, run, stored, _listed(allow_change), header) if training else []
        if callable(trainer):
            trainer = trainer(params)
        elif trainer is None:
            trainer = create_trainer(params, task, train=training, evaluate=evaluating)
        stack.callback(trainer.close)
        params = params.replace(trainer=_plan(mode, params, task, trainer))
        trainer.config = params
        out = None if verbose == 1 else io.StringIO()
        console = ConsoleTracker(params.trainer.train_steps or 0, out, history=run.directory / "history.csv")
        attempt = (
            Attempt(run, trainer, _text(stored, header) if keep else "", _listed(allow_change)) if training else None
        )
        tracker = Throughput(create_tracker(run, stored, console, attempt, save_summary, trainer), trainer)
        configured = ConfiguredActions(params, trainer, run.directory, mode)
        controller = controller_cls(
            trainer=trainer if training else None,
            evaluator=trainer,
            checkpointer=checkpointer,
            tracker=tracker,
            train_actions=[*configured.train_actions, *train_actions],
            eval_actions=[*configured.eval_actions, *eval_actions],
            trained=attempt.trained if attempt else lambda: None,
            asked=guard.asked,
            went_back=functools.partial(_rolled_back, run, guard),
            **controller_settings(params.trainer),
        )
        configured.join(controller)
        console.facts = LiveFacts(run, trainer, controller.saver)
        if attempt:
            controller.saver.parts += [*_parts(controller, trainer, attempt), configured]
        if _start(controller, trainer, mode, init_fn or task.initialize, run, say) and training:
            controller.refuse_fewer(params.trainer.train_steps or 0, _asked(stored.trainer))
            say(f"resumed at step {controller.step}, attempt {len(run.record['attempts']) + 1}")
        if training and (changed := run.changed_code()):
            say(f"the code has changed since the last attempt: {changed}")
        if verbose:
            evaluations = "at intervals" if mode == "train_and_eval" else "at the end" if evaluating else "never"
            _tell(controller, trainer, evaluations, changes, say)
        if attempt and evaluating and checkpointer.latest() is None:
            _try_evaluation(controller, params.trainer.sanity_validation_steps, say)
        recorded = attempt.recorded(changes, guard.last_beat) if attempt else contextlib.nullcontext()
        with recorded, contextlib.closing(tracker):
            if attempt:
                _note(run, {"mode": mode, **(record or {})})
            tracker.start(trainer.global_step)
            profile = Profile(trainer, run.directory, say)
            trainer.after_call = profile.around(functools.partial(_report, console, guard, run))
            seconds = params.trainer.tracking.system_seconds
            machine = watched(tracker, run.directory, seconds, lambda: trainer.global_step)
            with machine, contextlib.closing(profile):
                logs = _run_mode(controller, mode, params.trainer, run_post_eval or mode == "train_and_post_eval")
            trainer.close()
            if training and (keep or verbose) and (figures := cost.take(run.record, trainer, controller.training_time)):
                say(f"cost {figures}")
            if training and export:
                _leave_if_asked(guard)
                _export(trainer, run.directory)
            if attempt and at_end is not None:
                _leave_if_asked(guard)
                attempt.require_digests()
                at_end(run)
        _leave_if_asked(guard)  # all is done, but whoever asked wants to hear of it
        if training and len(run.record["attempts"]) > 1:
            say(f"goodput {goodput(run.record)}")
        return trainer.model, logs


def _tell_of_interruption(say: Callable[[str], None] | None, keeps: bool, kind: Any, error: Any, frames: Any) -> None:
    """Says, when all is saved, that a run was asked to end; whoever catches it knows that it is said."""
    if isinstance(error, Interrupted):
        error.keeps = keeps
        if say is not None:
            say(f"everstep: {error.text}")
            error.told = True


@contextlib.contextmanager
def _guarded(run: Run, params: ExperimentConfig) -> Iterator[Guard]:
    """The directory is this process's alone; removed again if this attempt created it, failed, and ran no step."""
    try:
        compiled = backend.keep_compiled(str(run.directory / ".compiled")) if run.is_kept else contextlib.nullcontext()
        with Guard(run.directory, params.runtime) as guard, compiled:
            run.read_again()
            yield guard
    except Interrupted:  # what is there helps the next attempt: a compiled program, the run's id
        raise
    except BaseException:
        run.discard()
        raise


@contextlib.contextmanager
def _checkpoints(run: Run, config: TrainerConfig, training: bool) -> Iterator[OrbaxCheckpointer]:
    """Closes them at the end; a save that failed does not hide a failure on its way."""
    run_id = run.id if training else run.recorded_id  # whoever only evaluates may come before the trainer
    checkpointer = OrbaxCheckpointer(run.directory / "checkpoints", retention(config), run_id, training, run.saved)
    try:
        yield checkpointer
    except BaseException as error:
        with _logged(SaveError):
            checkpointer.close()
        if isinstance(error, Interrupted):
            error.saved = checkpointer.latest()
        raise
    checkpointer.close()


@contextlib.contextmanager
def _logged(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        logger.error("%s", error)


def _check(mode: str, params: ExperimentConfig, model_dir: Any, strategy: Any) -> None:
    check_mode(mode)
    if not model_dir:
        raise UsageError(f"model_dir: received {model_dir!r}; name a directory for the run")
    if strategy is not None and not hasattr(strategy, "scope"):
        raise UsageError(
            f"distribution_strategy: received {strategy!r}; expected what get_distribution_strategy returns, or None"
        )
    params.validate()
    system_metrics.require(params.trainer.tracking.system_seconds)
    require_trackers(params.trainer.tracking)
    backend.select(params.runtime.backend)


def _changes(
    checkpointer: OrbaxCheckpointer, run: Run, params: ExperimentConfig, allow: list[str], header: Mapping[str, Any]
) -> list[Change]:
    """Returns what has changed since the newest checkpoint was trained; refuses what alters its arithmetic."""
    if checkpointer.latest() is None:
        check_keys(run.directory, params, allow)
        return []
    used = _used_config(checkpointer)
    return accepted_changes(run.directory, params, allow, str(header.get("gin", "")), used)


def _used_config(checkpointer: OrbaxCheckpointer) -> str:
    """Returns the configuration that the newest checkpoint was trained with; empty where it does not say."""
    return str(checkpointer.newest_meta().get("extra", {}).get(Attempt.name, {}).get("config", ""))


def _with_schedule(
    params: ExperimentConfig, task: Task, checkpointer: OrbaxCheckpointer, say: Callable[[str], None]
) -> TrainerConfig:
    """Returns the trainer's section with a learning rate as long as training: nobody has set its length.

    A run that resumes keeps the length that it began with, however long it is trained now.
    """
    config = params.trainer
    key = f"trainer.optimizer_config.{config.optimizer_config.open_length}"
    kept: Any = None
    if checkpointer.latest() is not None:
        kept = key_path.find(dialect.load(_used_config(checkpointer)), key)
    steps = _train_steps(params, task)
    if not isinstance(kept, int):
        return config.with_schedule(steps)
    new = config.with_schedule(kept + config.optimizer_config.learning_rate.get().offset)
    if config.with_schedule(steps) != new:
        say(f"the learning rate keeps its length of {kept} steps, with which the run began; {key} changes it")
    return new


def _train_steps(params: ExperimentConfig, task: Task) -> int | None:
    """Returns how long training is in steps; for epochs the data says it."""
    config = params.trainer
    if config.train_steps is not None:
        return config.train_steps
    batches = config.overfit_batches or _training_data(params, task).batches_per_epoch
    return in_steps(config, batches).train_steps


def _listed(keys: str | Sequence[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def _plan(mode: str, params: ExperimentConfig, task: Task, trainer: Trainer) -> TrainerConfig:
    """Returns the trainer's section in steps; as it is, where nothing in it that counts steps will be used."""
    config = params.trainer
    if "train" not in mode and (mode == "eval" or config.epochs is None):
        return config
    if config.overfit_batches is not None:
        return in_steps(config, config.overfit_batches)
    stream = _training_data(params, task) if trainer.train_stream is None else trainer.train_stream
    return in_steps(config, stream.batches_per_epoch, stream.counting)


def _training_data(params: ExperimentConfig, task: Task) -> Stream:
    """Returns the data somebody else trains on: continuous_eval has to know when that one is done."""
    data = params.task.train_data.replace(is_training=True)
    data = data if data.seed is not None else data.replace(seed=params.runtime.seed)
    try:
        return make_stream(task.inputs_for(data), data, training=True, seed=params.runtime.seed)
    except UsageError as error:
        raise UsageError(f"trainer.epochs: how long they are, task.train_data has to say: {error}") from error


def _parts(controller: Controller, trainer: Trainer, attempt: Attempt) -> list[Any]:
    """Returns what belongs to a state beside what the controller knows of."""
    has_rate = any(isinstance(part, LearningRate) for part in controller.saver.parts)
    return [attempt] if has_rate else [attempt, LearningRate(trainer, constant_rate(trainer.optimizer))]


def _start(
    controller: Controller, trainer: Trainer, mode: str, initialize: Callable, run: Run, say: Callable[[str], None]
) -> bool:
    """Restores the newest checkpoint, or, in a run that has none, gives the model its initial weights.

    Returns:
      Whether a checkpoint was restored.
    """
    if mode == "continuous_eval":
        if controller.checkpointer.latest() is None:
            timeout = trainer.config.trainer.continuous_eval_timeout
            say(f"waiting up to {timeout} s for the first checkpoint in {str(run.directory)!r}")
        return False
    if controller.restore_checkpoint() is not None:
        return True
    controller.checkpointer.require_hope()
    if mode == "eval":
        raise UsageError(
            f"there is no checkpoint to evaluate in {str(run.directory)!r}: train first, or check --model-dir"
        )
    run.record["initial_weights"] = _reported(initialize(trainer.model), say)
    if (average := find_average(trainer.optimizer)) is not None:
        average.start()
    trainer.engine.pull()
    for report in run.record["initial_weights"]:
        report["sha256"] = weights_digest(trainer.engine.state())
    return False


def _asked(config: TrainerConfig) -> str:
    """Returns how long the user wants to train, by the key that says it."""
    key = "train_steps" if config.epochs is None else "epochs"
    return f"trainer.{key}: received {getattr(config, key)}"


def _reported(reports: Any, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Says where initial weights came from, and returns it for the record; `reports` is one, a list of them, or none.

    What a file does not have, whoever read it has warned of.
    """
    listed = [report for report in nest.flatten([reports]) if isinstance(report, Report)]
    for report in listed:
        for line in report.lines() if report.is_complete else ():
            say(line)
    return [report.as_dict() for report in listed]


def _tell(
    controller: Controller, trainer: Trainer, evaluations: str, changes: Iterable[Change], say: Callable[[str], None]
) -> None:
    for change in changes:
        if change.path.rpartition(".")[2] == "init_checkpoint":
            say(f"not used: {change}; the run resumes from its own checkpoint of step {trainer.global_step}")
        else:
            say(f"resuming with {change}")
    saver = controller.saver
    announce(trainer, say, evaluations, resumes=not saver.is_off)
    if controller.trainer is not None and not (saver.interval or saver.seconds or saver.is_off):
        say("trainer.checkpoint_interval=0: nothing is saved before training is done, or asked to end")


def _try_evaluation(controller: Controller, steps: int, say: Callable[[str], None]) -> None:
    """Evaluates before the first step of a new run: what is wrong there shows now, not after hours of training."""
    if steps:
        begin = time.perf_counter()
        count = controller.try_evaluation(steps)
        batches = "1 batch" if count == 1 else f"{count} batches"
        say(f"sanity validation: evaluating works ({batches}, {time.perf_counter() - begin:.1f} s)")


def _note(run: Run, told: Mapping[str, Any]) -> None:
    """Writes what the caller knows of the run to its record, at once: a run that is killed has it, too."""
    run.record |= {**told, "data": {**run.record["data"], **told.get("data", {})}}
    run.update(run.step, run.record["epoch"])


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


def _rolled_back(run: Run, guard: Any, steps: int) -> None:
    """Notes that training is so many steps behind where it was: in the record, and where a kill would leave it."""
    run.again(steps)
    guard.go_on(run.step)


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
    with contextlib.suppress(OSError):  # nobody listens any more: no reason to stop
        text = redaction.text(line)
        print(text if "\n" in text else wrapped(text.split(" "), " ", sys.stderr), file=sys.stderr)


def _text(params: ExperimentConfig, header: Mapping[str, Any]) -> str:
    """Returns `config.yaml`: what repeats the run, and no secret."""
    return dialect.dump(redaction.tree(dialect.escaped({**header, **params.as_dict()})))


def _export(trainer: Trainer, directory: Path) -> None:
    """Exports the model as it was evaluated: with its averaged weights, where there are such."""
    sample = first_samples(unpack(trainer.example)[0], 8)
    with trainer.averaged(), random_state.untouched():
        trainer.engine.push()
        written = export_all(trainer.model, directory / "export", sample)
    trainer.engine.push()
    if not written:
        logger.warning(
            "the model is trained and saved, but not exported: repair what is said above, then: everstep export %s",
            shlex.quote(str(directory)),
        )
