"""What a person wants to see before the first step: the model, a batch's shapes, the plan."""

from collections.abc import Callable
from typing import Any

from everstep.data import nest
from everstep.loop.trainer import Trainer


def announce(trainer: Trainer, say: Callable[[str], None], evaluations: str, resumes: bool) -> None:
    """Says what is about to be trained or evaluated.

    Args:
      trainer: It.
      say: Called with each line.
      evaluations: When it is evaluated: `at intervals`, `at the end` or `never`.
      resumes: Whether anything is kept from which the run could go on.
    """
    trainer.model.summary(print_fn=lambda line, line_break=True: say(line), line_length=78)
    train, validation = (trainer.train_stream, trainer.train_example), (trainer.validation_stream, trainer.example)
    for kind, (stream, batch) in (("train", train), ("validation", validation)):
        if stream is not None:
            per_epoch = f", {stream.batches_per_epoch} batches an epoch" if stream.batches_per_epoch else ""
            say(f"{kind} batch: {_shapes(batch)}{per_epoch}")
            if resumes and trainer.train_stream is not None and (weaker := stream.guarantee):
                say(f"the {kind} data does not resume exactly: {weaker}")
    if trainer.train_stream is not None:
        config = trainer.config.trainer
        if config.train_steps is None:
            say(f"plan: {config.epochs:g} epochs; the first tells how many steps each has")
            return
        if trainer.global_step >= config.train_steps:
            say(f"nothing left to train: the run is at step {trainer.global_step} of {config.train_steps}")
            return
        when = {"at intervals": f", evaluate every {config.validation_interval}", "at the end": ", evaluate at the end"}
        say(
            f"plan: steps {trainer.global_step} to {config.train_steps}, log every {config.steps_per_loop}"
            f"{when.get(evaluations, '')}, save every {config.checkpoint_interval or 'end of training'}"
        )


def _shapes(batch: Any) -> str:
    return ", ".join(f"{path or 'x'} {leaf.dtype}{list(leaf.shape)}" for path, leaf in nest.walk(batch))
