"""The one place where a compiled Keras model meets the loop.

`everstep.fit`, `Training`, `KerasTrainer` (components) and `FlowTask` translate their arguments into `train_compiled`,
and its result into their files:

    history = train_compiled(
        model,
        train_stream,
        validation_stream,
        epochs=5,
        steps_per_epoch=100,
        callbacks=[keras.callbacks.EarlyStopping()],
        run=RunPlan("runs/mine", seed=1, listeners=[MyListener()]),
    )

An entry point's own keys in `config.yaml` are a subclass of `CompiledTaskConfig`. What it does while the model trains
is a list of `Listener`s (`loop/listener.py`). What belongs to the run beyond training (a test, an export) is
`RunPlan.at_end`.

All entry points share these conventions:

- The History is returned, with all epochs of all attempts; any error has the History so far as `error.history`.
- `verbose`: 0 prints nothing, 1 (or True, "auto") progress, 2 one line per epoch; see `verbose.py`.
- A loss or a weight that is not finite does not end an epoch, because a callback may want to see it, but nothing of the
  epoch is saved: a run that is kept fails at its end. `RunPlan(ends_diverged_epochs=False)` fails before the callbacks.
- Errors name keys as the user knows them: `RunPlan.names`. `loop_keys` translates `allow_change` back.
- Ctrl-C saves the state and raises `KeyboardInterrupt`; SIGTERM saves it and raises `Interrupted`.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras

from everstep.config import is_below
from everstep.data import Stream, nest
from everstep.engine import Engine, RuntimeConfig, backend, current_strategy
from everstep.errors import KeyNames, UsageError, renamed_key, renamed_keys
from everstep.experiment import EntryPoint, run_experiment
from everstep.experiment_config import ExperimentConfig
from everstep.frontends.history import History
from everstep.frontends.verbose import Verbose, log_output, verbosity
from everstep.loop import EpochSchedule, KerasCallbacks, LearningRate, Listener, Trainer, TrainerConfig
from everstep.notebook import people_stream
from everstep.run import Labels, Run, allowed_in_python, as_python_interrupts, shorten_uncaught_errors
from everstep.task import CompiledTask, Settings, TaskConfig, describe, remember_description, settings
from everstep.task.optim import parts_of
from everstep.tracking import plain, value_text
from everstep.types import Batch, Logs

backend.import_engine()  # now, and not in the first call

NAMES: KeyNames = {
    "trainer.epochs": "epochs",
    "trainer.train_steps": "epochs",
    **dict.fromkeys(("task", "trainer", "runtime")),
}
"""What every entry point's users call the keys of a configuration that they do not write themselves.

None of the others can be set: no remedy mentions them. An entry point adds the names of those that it can set.
"""


@dataclasses.dataclass
class CompiledTaskConfig(TaskConfig):
    """A compiled model in `config.yaml`. A resumed run may change none of it, except by `allow_change`.

    Entry points with keys of their own subclass it. `train_compiled` fills in what describes the model.
    """

    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the model's optimizer, as it was compiled."""
    loss: str = ""
    """The model's loss, or those of its outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""
    class_weight: dict[int, float] | None = None
    """Weight of each class in the loss."""


@dataclasses.dataclass
class RunPlan:
    """Where a compiled model's run is, how it is recorded, and what its entry point adds.

    Attributes:
      directory: The run directory, or its URL in a store.
      task: The entry point's section of `config.yaml`, with its data sections and keys of its own.
      trainer: Further fields of `TrainerConfig`, such as `max_to_keep`.
      seed: The seed, of the order of the data and, with `seeds_program`, of everything.
      seeds_program: Whether Python's, NumPy's and Keras's generators are seeded. A call inside
        another program does not, and has prepared the backend itself.
      deterministic: As `runtime.deterministic`.
      keep: Whether the directory is kept; otherwise nothing is saved, and there is nothing to resume from.
      strategy: The distribution strategy that the model was built in; None for one device.
      verbose: 0 prints nothing, 1, True or "auto" progress, 2 a line per epoch.
      allow_change: Keys that a resumed run may change although they alter what it computes, by the user's names or
        those of `config.yaml`.
      names: What the user calls keys of the configuration; added to `NAMES`.
      has_command: Whether there is a command with `--allow-change`, which a refused change then mentions.
      epochs_origin: The file and line that sets the number of epochs; empty for none.
      experiment: The name of the run in its record.
      labels: Its name where it is a run of no experiment, and its tags and notes.
      record: Further entries of `run.json`; see `EntryPoint`.
      code_root: Where the code is that the run depends on; by default the working directory.
      shows_layers: Whether the table of the model's layers is printed, or one line about the model.
      export: Whether the model is exported to `export/` in the run directory, in every format; or the formats.
      ends_diverged_epochs: Whether an epoch in which training diverged is evaluated, and seen by callbacks, before the
        run fails.
      listeners: Called while the model trains, in this order.
      at_end: Called with the run's record when training is done, while the directory is still locked.
    """

    directory: str | Path
    task: CompiledTaskConfig = dataclasses.field(default_factory=CompiledTaskConfig)
    trainer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    seeds_program: bool = True
    deterministic: bool | Literal["auto"] = "auto"
    keep: bool = True
    strategy: Any = None
    verbose: Verbose = True
    allow_change: str | Sequence[str] = ()
    names: KeyNames = dataclasses.field(default_factory=dict)
    has_command: bool = True
    epochs_origin: str = ""
    experiment: str = ""
    labels: Labels = Labels()
    record: Mapping[str, Any] | None = None
    code_root: str | Path | None = None
    shows_layers: bool = True
    export: bool | Sequence[str] = False
    ends_diverged_epochs: bool = True
    listeners: Sequence[Listener] = ()
    at_end: Callable[[Run], None] | None = None


def train_compiled(
    model: keras.Model,
    train: Stream,
    validation: Stream | None,
    epochs: int,
    *,
    steps_per_epoch: int | None,
    batches_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    callbacks: Any = (),
    first_epoch: int = 0,
    watch: str = "",
    task_cls: type[CompiledTask] = CompiledTask,
    run: RunPlan,
) -> keras.callbacks.History:
    """Trains a compiled model until `epochs` epochs are done in total; an interrupted run resumes.

    Args:
      model: The compiled model. It has its last weights afterwards, and is described as it was compiled.
      train: Batches to train on, with the weights of classes, if any.
      validation: Batches to evaluate at the ends of epochs; None for none.
      epochs: The total number of epochs.
      steps_per_epoch: The steps of an epoch; None for a pass over the data.
      batches_per_epoch: The batches of a pass, where epochs end with it; None where the number is unknown, or the
        data is endless.
      validation_steps: Batches per evaluation; None for all.
      validation_freq: The number of epochs between evaluations; or a list of epochs, counted from 1.
      callbacks: The user's Keras callbacks.
      first_epoch: The epoch that a new run begins with.
      watch: The log of a custom `train_step` that has to stay finite.
      task_cls: The task's class, created from model, streams and configuration.
      run: Where and how the run is kept.

    Returns:
      The History of all epochs, also of those in earlier attempts.

    Raises:
      UsageError: The request is invalid, or would resume a run that was trained differently.
      TrainingError: The run started and failed. Like any error it has `history`, the epochs so far.
    """
    shorten_uncaught_errors()
    names, verbose = {**NAMES, **run.names}, verbosity(run.verbose)
    if validation is not None:
        _require_same_classes(list(train.classes), list(validation.classes), renamed_key("task.validation_data", names))
    schedule = EpochSchedule(
        epochs,
        steps_per_epoch,
        batches_per_epoch,
        validates=False if validation is None else validated_epochs(validation_freq),
        key=renamed_key("trainer.epochs", names),
        origin=run.epochs_origin,
    )
    before = settings(model)
    spec = describe(model, before)
    params = ExperimentConfig(
        task=dataclasses.replace(
            run.task, model=spec.model, optimizer=spec.optimizer, loss=spec.loss, loss_weights=spec.loss_weights
        ),
        trainer=_trainer_config(schedule, validation_steps, validation_freq, run),
        runtime=RuntimeConfig(seed=run.seed, deterministic=run.deterministic),
    )
    task = task_cls(model, params=params.task, watch=watch)
    listeners = [*run.listeners, *([EpochLines(epochs)] if verbose == 2 else [])]
    callback_list = KerasCallbacks(
        callbacks,
        model,
        schedule,
        initial_epoch=first_epoch,
        verbose=run.verbose,
        listeners=listeners,
        sees_divergence=run.ends_diverged_epochs,
        history=History(str(run.directory) if run.keep else ""),
    )

    def create_trainer(params: ExperimentConfig) -> Trainer:
        if run.seeds_program:
            backend.prepare(run.seed, run.deterministic)
        data = {"train_dataset": train, "validation_dataset": validation, "evaluate": validation is not None}
        return ReusingTrainer(params, task, model, model.optimizer, **data, settings=before)

    with contextlib.ExitStack() as stack:
        stack.push(functools.partial(_attach_history, callback_list))
        stack.enter_context(as_python_interrupts())
        stack.enter_context(renamed_keys(names))
        if not run.has_command:
            stack.enter_context(allowed_in_python())
        stack.enter_context(log_output(verbose))
        try:
            run_experiment(
                task,
                params,
                run.directory,
                "train" if validation is None else "train_and_eval",
                distribution_strategy=run.strategy,
                save_summary=run.keep,
                trainer=create_trainer,
                hooks=[callback_list, *listeners, LearningRate(spec.learning_rate)],
                experiment=run.experiment,
                export=run.export,
                verbose=verbose,
                allow_change=loop_keys(run.allow_change, names),
                keep=run.keep,
                entry_point=EntryPoint(
                    record=run.record,
                    code_root=run.code_root,
                    schedule=schedule,
                    shows_layers=run.shows_layers,
                    labels=run.labels,
                    at_end=run.at_end,
                ),
            )
        finally:
            after = settings(model)
            remember_description(model, spec, after)
        callback_list.controller.trainer.leave_engine(after)
    return callback_list.history


def _require_same_classes(train: Sequence[str], validation: Sequence[str], key: str) -> None:
    """Refuses validation data in which a number is another class, as that of a folder that lacks one.

    Raises:
      UsageError: The names of the classes differ, where both have some.
    """
    if train and list(train[: len(validation)]) != list(validation):
        raise UsageError(
            f"has other classes than the training data, {', '.join(train[:6])}: the same number would be another class",
            key=key,
            received=list(validation[:6]),
            remedy="name the classes where it is opened, in the same order, or give it a sample of each",
        )


def loop_keys(allow_change: str | Sequence[str], names: KeyNames) -> list[str]:
    """Returns the keys that a resumed run may change as the loop has them; unknown ones are refused later.

    Args:
      allow_change: Names that the user knows, and what is below them, such as `optimizer.learning_rate`; or keys of
        `config.yaml`. A single one need not be in a list.
      names: What the user calls keys of the configuration.
    """
    found: list[str] = []
    for given in [allow_change] if isinstance(allow_change, str) else allow_change:
        below = [f"{key}{given.removeprefix(name)}" for key, name in names.items() if name and is_below(given, [name])]
        found += below or [given]
    return found


def validated_epochs(validation_freq: Any) -> Callable[[int], bool]:
    """Returns a function that tests whether an epoch, counted from 0, ends with an evaluation.

    Args:
      validation_freq: The number of epochs between evaluations; or a list of epochs, counted from 1.

    Raises:
      UsageError: It is something else.
    """
    listed = isinstance(validation_freq, list | tuple)
    for number in validation_freq if listed else [validation_freq]:
        if not isinstance(number, numbers.Integral) or isinstance(number, bool) or number < 1:
            raise UsageError(
                "expected a whole number from 1 on, or a list of epochs", key="validation_freq", received=number
            )
    if listed:
        return lambda epoch: epoch + 1 in validation_freq
    return lambda epoch: (epoch + 1) % validation_freq == 0


class EpochLines(Listener):
    """`verbose=2`: prints one line per epoch, for logs.

        Epoch 3/5 - 0.4s - loss: 0.41872 - accuracy: 0.8125 - val_loss: 0.45133 - val_accuracy: 0.75

    Args:
      epochs: The total number of epochs.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs, self._since = epochs, time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Prints the line."""
        now = time.perf_counter()
        parts = [f"Epoch {epoch + 1}/{self._epochs}", f"{now - self._since:.1f}s"]
        parts += [f"{name}: {value_text(value, 5)}" for name, value in plain(logs).items()]
        self._since = now
        with contextlib.suppress(OSError, ValueError):  # standard error is closed: no reason to stop
            print(" - ".join(parts), file=people_stream(), flush=True)


class ReusingTrainer(Trainer):
    """A trainer that uses the engine of the model's last training: where nothing has changed, nothing is compiled.

    The engine is an attribute of the model, so that both are freed together; it holds no data and no copy of the
    weights. Everything that a compiled step depends on and that may change between two calls is compared before.

    Args:
      *args: Of `Trainer`.
      settings: Of the model before training.
      **kwargs: Of `Trainer`.
    """

    def __init__(self, *args: Any, settings: Settings, **kwargs: Any) -> None:
        self._settings = settings
        super().__init__(*args, **kwargs)

    def _built_engine(self, train_batch: Batch | None, validation_batch: Batch | None) -> Engine:
        kept, shapes = vars(self.model).pop(_ATTRIBUTE, None), (_shapes(train_batch), _shapes(validation_batch))
        if kept is not None and kept.serves(self._describe(kept.engine, shapes)) and kept.engine.reuse(self.task):
            self._kept_shapes = kept.shapes
            return kept.engine
        self._kept_shapes = shapes
        return super()._built_engine(train_batch, validation_batch)

    def leave_engine(self, settings: Settings) -> None:
        """Keeps the engine for the next call; the trainer is closed and no longer uses it.

        Args:
          settings: Of the trained model.
        """
        self.engine.release()
        self._settings = settings
        vars(self.model)[_ATTRIBUTE] = self._describe(self.engine, self._kept_shapes)

    def _describe(self, engine: Engine, shapes: tuple[Any, Any]) -> "_Kept":
        model, optimizer = self.model, self.optimizer
        layers = list(model._flatten_layers())
        compiled = [model._compile_loss, model._compile_metrics, model._loss_tracker]
        optimizers = [optimizer, *parts_of(optimizer)]
        # Variables or schedules: another one is another step.
        rates = [getattr(one, "_learning_rate", None) for one in optimizers]
        objects = [*optimizers, *rates, *compiled, current_strategy(), *layers]
        values = [
            (model.run_eagerly, model.jit_compile, keras.config.floatx()),
            (self.config.runtime.enable_xla, self.config.runtime.cuda_graph, self.config.runtime.deterministic),
            [(layer.trainable, layer.dtype_policy.name) for layer in layers],
            [variable.trainable for variable in model.variables],
            self._settings.without_rate(),
        ]
        return _Kept(engine, objects, values, shapes)


_ATTRIBUTE = "_everstep_kept"


@dataclasses.dataclass(frozen=True)
class _Kept:
    """An engine, and what it was built for."""

    engine: Engine
    objects: list[Any]
    """Compared by identity: what `compile` created, the layers, the strategy."""
    values: list[Any]
    """Compared by value: settings of layers and of the optimizer, what is trainable."""
    shapes: tuple[Any, Any]
    """The shapes of a training batch and of a validation batch; None where it was built without."""

    def serves(self, other: "_Kept") -> bool:
        """Whether the engine can serve another call; one that evaluates can also train only."""
        if len(self.objects) != len(other.objects) or self.values != other.values:
            return False
        if any(one is not another for one, another in zip(self.objects, other.objects, strict=True)):
            return False
        train, validation = other.shapes
        return bool(self.shapes[0] == train) and validation in (None, self.shapes[1])


def _shapes(batch: Batch | None) -> Any:
    if batch is None:
        return None
    return nest.structure(batch), [(leaf.shape, str(leaf.dtype)) for leaf in nest.flatten(batch)]


def _trainer_config(
    schedule: EpochSchedule, validation_steps: int | None, validation_freq: Any, run: RunPlan
) -> TrainerConfig:
    """Returns the trainer's section that says the same as the schedule, in steps, for records and for a resumed run.

    Where the length of an epoch is unknown, the first one will show it, and the section is in epochs.
    """
    every = 1 if isinstance(validation_freq, list | tuple) else int(validation_freq)
    steps, epochs = schedule.full_epoch_steps, max(schedule.epochs, 1)  # with 0 epochs, the schedule ends at step 0
    each: int | str = "1 epoch" if steps is None else steps
    settings: dict[str, Any] = {
        "train_steps": None if steps is None else schedule.epoch_start(schedule.epochs) or steps,
        "epochs": float(epochs) if steps is None else None,
        "steps_per_loop": each,
        "validation_interval": f"{every} epochs" if steps is None else steps * every,
        "validation_steps": -1 if validation_steps is None else validation_steps,
        "checkpoint_interval": each,
        "loss_upper_bound": math.inf,  # the loss of a regression may be large
    }
    if not run.keep:
        settings |= {"checkpoint_interval": 0, "recovery_max_trials": -1}  # as `model.fit`, it goes on
    return TrainerConfig(**{**settings, **run.trainer})


def _attach_history(callbacks: KerasCallbacks, kind: Any, error: BaseException | None, frames: Any) -> None:
    if error is not None:
        error.history = callbacks.history  # type: ignore[attr-defined]
