"""What a run says on the screen beside its logs: changes, the model, its data, the plan, why it stopped, its end."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

from everstep.config import Change
from everstep.data import nest
from everstep.loop import Controller, Schedule, Trainer, TrainerConfig
from everstep.notebook import is_notebook
from everstep.run.printing import print_line
from everstep.run.signals import Interrupted
from everstep.task.optim import rate_table
from everstep.tracking import trial_name

Say = Callable[[str], None]
"""Called with each line."""


@contextlib.contextmanager
def interruption_announced(say: Say | None, keeps: bool) -> Iterator[None]:
    """Says after the block, when everything is saved, that a stop was requested, and marks the error as announced.

    Args:
      say: Called with the line; None to say nothing.
      keeps: Whether the directory is kept, so that the run can be resumed.
    """
    try:
        yield
    except Interrupted as error:
        error.keeps = keeps
        if say is not None:
            say(f"everstep: {error.text}")
            error.announced = True
        raise


def announce_end(rows: Iterable[tuple[str, str]]) -> None:
    """Prints the last lines of a run, see `closing.py`."""
    for label, text in rows:
        print_line(f"{label:<8}  {text}")


def announce_changes(changes: Iterable[Change], trainer: Trainer, say: Say) -> None:
    """Says which changes of the configuration a resumed run has accepted."""
    for change in changes:
        if change.path.rpartition(".")[2] == "init_checkpoint":
            say(f"not used: {change}; the run resumes from its own checkpoint of step {trainer.global_step}")
        else:
            say(f"resuming with {change}")


def announce_model(trainer: Trainer, shows_layers: bool, say: Say) -> None:
    """Prints the table of the model's layers, unless the call before has; one line of a trial, and in a notebook."""
    if trainer.engine.is_reused:
        return
    model = trainer.model
    if shows_layers and not trial_name() and not is_notebook():
        model.summary(print_fn=lambda line, line_break=True: say(line), line_length=78)
        return
    trainable = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    parameters = f"{model.count_params():,} parameters, {trainable:,} of them trainable"
    say(f"model: {model.name}, layers: {len(model.layers)}, {parameters}")


def announce_data(trainer: Trainer, saves: bool, say: Say) -> None:
    """Says the shapes of a batch of each kind of data, and what its stream has to say.

    Args:
      trainer: The trainer with the data.
      saves: Whether the run saves checkpoints.
      say: Called with each line.
    """
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
            if saves and trainer.train_stream is not None and (weaker := stream.why_not_exact):
                say(f"the {kind} data does not resume exactly: {weaker}")


def announce_plan(
    controller: Controller, trainer: Trainer, schedule: Schedule, config: TrainerConfig, evaluations: str, say: Say
) -> None:
    """Says what is about to be trained.

    Args:
      controller: The loop.
      trainer: The trainer.
      schedule: Where windows end.
      config: The trainer's section, in steps.
      evaluations: When evaluations run: `at intervals`, `at the end` or `never`.
      say: Called with each line.
    """
    step, saver = trainer.global_step, controller.saver
    end = schedule.last_step(config.train_steps)
    if end is None:
        say(f"plan: {config.epochs:g} epochs; the first one counts their steps")
    elif step >= end:
        say(f"nothing left to train: the run {schedule.reached(step, end)}")
    elif controller.stopped and controller.progress.target >= end:
        epoch = schedule.epoch_number(step)
        where = f"step {step}" if epoch is None else f"epoch {epoch} (step {step})"
        reason = f"the run was stopped early at {where}: {controller.stopped}"
        say(f"nothing left to train: {reason}. To train it further, ask for more steps or epochs")
    else:
        say(f"plan: {schedule.plan(step, end, config, evaluations)}")
    for optimizer in trainer.engine.optimizers:
        if table := rate_table(optimizer):
            say(f"factors of the learning rate:\n{table}")
    if late := config.optimizer_config.late_warmup:
        say(f"trainer.optimizer_config.{late}: the schedule ends before; the learning rate stays below its last value")
    if not (saver.interval or saver.seconds or saver.is_disabled):
        say("trainer.checkpoint_interval=0: nothing is saved before training is done, or a stop is requested")
