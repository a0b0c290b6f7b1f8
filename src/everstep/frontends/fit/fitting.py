"""`everstep.fit`: `model.fit` on the core, with its guarantees.

Arguments that all entry points share, such as `validation_freq`, are handled by `frontends/compiled.py`.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras

from everstep.checkpoint.remote import working_copy
from everstep.data import left_out, source_record
from everstep.engine import backend, preprocesses
from everstep.errors import DivergedError, KeyNames, UsageError, problems_under
from everstep.frontends import (
    ClassNames,
    CompiledTaskConfig,
    RunPlan,
    Verbose,
    compiled,
    log_output,
    train_compiled,
    validated_epochs,
    verbosity,
)
from everstep.frontends.fit.arguments import (
    Counts,
    class_weights,
    export_formats,
    refuse_unknown,
    refuse_without_directory,
    require_place,
    shuffling,
    whole,
)
from everstep.frontends.fit.best_epoch import best_epoch
from everstep.frontends.fit.data_folders import require_no_data
from everstep.frontends.fit.final_report import FinalReport
from everstep.frontends.fit.labelling import labels_of
from everstep.frontends.fit.samples import evaluation_data, split, training_data
from everstep.frontends.fit.streams import counted, train_stream, validation_stream
from everstep.frontends.fit.tracking import tracking_config
from everstep.gang import current_gang
from everstep.keras_internals import global_state, rng_utils
from everstep.loop import accepted, random_state
from everstep.run import announcements, closing_rows, exported_files, program_run, shorten_uncaught_errors, stored_seed
from everstep.task import CompiledTask, needs_labels, require_compiled
from everstep.tracking import TrackingConfig
from everstep.types import Batch

logger = logging.getLogger(__name__)

NAMES: KeyNames = {
    **compiled.NAMES,
    "task.train_data.global_batch_size": "batch_size",
    "task.validation_data.global_batch_size": "validation_batch_size",
    "task.train_data.repeat": None,
    "task.train_data.y": "y",
    "task.train_data": "x",
    "task.validation_data.y": "validation_data",
    "task.validation_data": "validation_data",
    "task.shuffle": "shuffle",
    "task.class_weight": "class_weight",
    "task.optimizer": "optimizer",
    "task.loss_weights": "loss_weights",
    "task.loss": "loss",
    "task.model": "model",
    "trainer.tracking": "tracking",
    "trainer.validation_steps": "validation_steps",
    "runtime.seed": "seed",
    "runtime.deterministic": "deterministic",
    "runtime.backend": "backend",
}
"""Keys of the loop, and the arguments of `fit` and `compile` that users know them by."""


@dataclasses.dataclass
class FitConfig(CompiledTaskConfig):
    """The arguments of `fit` in `config.yaml`; a resumed run must have the same."""

    shuffle: bool = True
    """Whether arrays are shuffled."""


class FitTask(CompiledTask):
    """The compiled model; errors about its labels name `y`."""

    def check_batch(self, inputs: Batch) -> None:
        """Checks the labels."""
        try:
            super().check_batch(inputs)
        except UsageError as error:
            raise UsageError(problems_under("y", error)) from error


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Verbose = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    model_dir: str | Path | None = None,
    seed: int | None = None,
    allow_change: str | Sequence[str] = (),
    watch: str = "",
    export: str | Sequence[str] = "keras",
    deterministic: bool | None = None,
    tracking: str | Sequence[str] | Mapping[str, Any] | TrackingConfig | None = None,
    name: str | None = None,
    tags: str | Sequence[str] | Mapping[str, str] | None = None,
    notes: str | None = None,
    report: bool | None = None,
    class_names: Sequence[str] | None = None,
    **unknown: Any,
) -> keras.callbacks.History:
    """Trains a compiled Keras model, as `model.fit` would, several steps per compiled call.

    The arguments before `model_dir` are those of `model.fit`, in its order and with its meaning.

    Example:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = everstep.fit(model, x, y, epochs=5, validation_data=(x_test, y_test), model_dir="runs/mine")

    Args:
      model: A compiled model.
      x: Arrays, in any nesting; a tuple `(x, y)` or `(x, y, sample_weight)` of them; or a `tf.data.Dataset`, a
        `keras.utils.PyDataset`, a Grain dataset, a dataset by index, a generator function, a Stream.
      y: Labels, where x is arrays without them. Labels of text are numbered in the order of `class_names`, else of the
        alphabet, where the loss takes numbers of classes.
      batch_size: Samples per step, for arrays and datasets of single samples. None for 32; for arrays with
        `steps_per_epoch`, for as many as divide them into those steps.
      epochs: The total number of epochs, also of a resumed run.
      verbose: 0 prints nothing, 1, True or "auto" progress, 2 a line per epoch.
      callbacks: A Keras callback, or several.
      validation_split: The part of the arrays, the last before shuffling, to evaluate instead of training on it. An
        `ImageSource` has its own in its `ImageDataConfig`: what that leaves out is evaluated.
      validation_data: What to evaluate at an epoch's end; `validation_split` is then ignored.
      shuffle: Whether arrays are shuffled before each epoch.
      class_weight: Weight of each class in the loss.
      sample_weight: Weight of each sample in the loss, where x is arrays.
      initial_epoch: The first epoch of a new run; ignored by a run that resumes.
      steps_per_epoch: Steps of an epoch; needed only for data that repeats forever. None for one pass over the data.
      validation_steps: Batches per evaluation; None for all.
      validation_batch_size: Samples per batch of an evaluation; None for `batch_size`.
      validation_freq: Evaluate every so many epochs; or a list of the epochs, the first of which is 1.
      model_dir: The run directory, or its URL in a store: run the same call again and it resumes there. None keeps
        nothing.
      seed: Of the order of the data. None takes the one of the run in `model_dir`; for a new run another one at each
        call, which follows from `keras.utils.set_random_seed` where that was called.
      allow_change: Keys, such as `batch_size` or `optimizer.learning_rate`, that a resumed run may change although they
        alter what it computes; one that holds others, such as `model`, covers them. The refusal names the keys.
      watch: Which of the logs has to stay finite, of a model whose own `train_step` returns no `loss`; the first one
        by default.
      export: The formats in which the trained model is written to `export/` in the run directory: `keras`, the default;
        `saved_model` on TensorFlow and JAX, `torch` on PyTorch; `preset`, `adapter`, `transformers` of KerasHub's
        models. [] for none. `everstep export RUN` writes others later.
      deterministic: Whether steps on a GPU must give the same bits when they are repeated. None: wherever that can be
        had, with a warning where not. True refuses where not; False may be faster.
      tracking: Where the run is tracked beside TensorBoard and `history.csv`: "mlflow", "wandb", "jsonl", or several;
        or a dict of settings, such as `{"mlflow": True, "mlflow_uri": "http://localhost:5000"}`.
      name: What the run is called. None: as before; a new run is called as the model.
      tags: Words, such as `["baseline"]`, or texts by name, such as `{"team": "vision"}`, for lists and trackers. None:
        as before.
      notes: Any text about the run. None: as before.
      report: Whether the exported model is evaluated sample by sample when training is done, and the report written.
        None: where there is validation data, and the evaluation takes a few seconds.
      class_names: The names of the classes, in the order of their numbers, for the run's predictions and reports. None
        for those that the data has, such as those of `keras.utils.image_dataset_from_directory`.
      **unknown: Refused by name.

    Returns:
      The History, as `model.fit` returns it; of a run that was resumed, that of all its epochs.

    Raises:
      UsageError: The request is invalid, or would resume a run that was trained differently.
      TrainingError: Training has failed; with `model_dir`, also where the loss or a weight is not finite at an epoch's
        end, unless a callback, such as `TerminateOnNaN`, has ended training there: then the History is returned.
        The History so far is in the attribute `history` of this error, as of any other.
    """
    shorten_uncaught_errors()
    refuse_unknown(unknown, [name for name in inspect.signature(fit).parameters if name != "unknown"])
    require_compiled(model)
    require_place(model_dir)
    require_no_data(model_dir, x, validation_data)
    given = (batch_size, epochs, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size)
    counts = Counts(*given, model.steps_per_execution or 1)
    counts = counts.limited(keras.config.max_epochs(), keras.config.max_steps_per_epoch())
    shuffle, weights, is_validated = shuffling(shuffle), class_weights(class_weight), validated_epochs(validation_freq)
    given_callbacks = accepted(callbacks, keeps=bool(model_dir))
    formats = export_formats(export, model, model_dir)
    if not model_dir:
        refuse_without_directory(tracking=tracking, name=name, tags=tags, notes=notes, report=report or None)
    tracked, labels = tracking_config(tracking), labels_of(model, name, tags, notes)
    if report is not None and not isinstance(report, bool):
        raise UsageError("expected True, False, or None", key="report", received=report)
    inputs = len(getattr(model, "inputs", None) or ()) or None  # None where it is not known before the model is built
    takes_text, classes = preprocesses(model), ClassNames(model, class_names)
    if y is None and isinstance(x, tuple):  # a list is several inputs
        x = classes.in_data(x, "x")
    else:
        y = classes.numbered(y)
    data = training_data(x, y, sample_weight, inputs, needs_labels(model), takes_text)
    if validation_data is None and validation_split:
        data, held_out = split(data, validation_split)
    elif validation_data is None:
        held_out = left_out(data)
    else:
        validation_data = classes.in_data(validation_data, "validation_data")
        held_out = evaluation_data(validation_data, needs_labels(model, "test_step"), takes_text)
    seed = None if seed is None else whole("seed", seed, least=0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(log_output(verbose))
        # A call that keeps nothing works in a directory that is removed afterwards.
        placed = program_run(model_dir) if model_dir else None
        place = working_copy(placed.directory) if placed else tempfile.TemporaryDirectory()
        directory = Path(stack.enter_context(place))
        classes.require_those_of(directory)
        seed = choose_seed(directory, placed.seed if placed else None) if seed is None else seed
        exact: bool | Literal["auto"] = "auto" if deterministic is None else deterministic
        stack.enter_context(backend.prepared(seed, exact))
        train, train_config = train_stream(model, data, counts, shuffle, weights, seed)
        train, batches = counted(train, data, counts.epoch_steps)
        validation, validation_config = validation_stream(model, held_out, counts, train_config, seed, is_validated)
        task = FitConfig(
            train_data=train_config,
            validation_data=validation_config,
            shuffle=shuffle,
            class_weight=weights,
        )
        final = FinalReport(model, validation, counts.evaluation_steps, report if model_dir else False)

        def finish(history: keras.callbacks.History) -> None:
            if placed and current_gang().is_first:
                page = final.write(directory)
                if verbosity(verbose):
                    best = best_epoch(history, given_callbacks, is_validated)
                    exported = exported_files(directory) if formats else []
                    announcements.announce_end(closing_rows(str(placed.directory), best, exported, page))

        if classes.are_numbered and verbose:
            announcements.print_line(classes.line())
        return _train(
            model,
            train,
            validation,
            counts.epochs,
            steps_per_epoch=counts.epoch_steps,
            batches_per_epoch=batches,
            validation_steps=counts.evaluation_steps,
            validation_freq=validation_freq,
            callbacks=given_callbacks,
            first_epoch=counts.initial_epoch,
            watch=watch,
            task_cls=FitTask,
            run=RunPlan(
                directory,
                task,
                trainer={"tracking": tracked},
                seed=seed,
                seeds_program=False,
                deterministic=exact,
                keep=bool(model_dir),
                verbose=verbose,
                allow_change=placed.allowed(allow_change) if placed else allow_change,
                names=NAMES,
                has_command=False,
                export=formats,
                labels=labels,
                at_end=final.evaluate,
                record={
                    **({"classes": classes.names} if classes.names else {}),
                    **(placed.record() if placed else {}),
                    **_named_sources(train=data, validation=held_out),
                },
            ),
            finish=finish,
        )


def _train(
    model: keras.Model, *args: Any, finish: Callable[[keras.callbacks.History], None], **kwargs: Any
) -> keras.callbacks.History:
    """Calls `train_compiled`, then `finish`; that `TerminateOnNaN`, say, ends diverged training is no failure."""
    try:
        trained = train_compiled(model, *args, **kwargs)
    except DivergedError as error:
        if not model.stop_training:
            raise
        logger.warning("%s; training was ended by a callback: the run is recorded as failed", error.reason)
        history: keras.callbacks.History = error.history  # type: ignore[attr-defined]
        return history
    finish(trained)
    return trained


def _named_sources(**sources: Any) -> dict[str, Any]:
    """Returns the entry of the record that names the data, for an evaluation without the program."""
    named = {kind: found for kind, source in sources.items() if (found := source_record(source)) is not None}
    return {"sources": named} if named else {}


class _CountedSeed(int):
    """Marks a seed of `keras.utils.set_random_seed` that `fit` has seen; seeding again replaces it."""


_last: dict[str, Any] = {"state": "", "calls": 0}


def choose_seed(directory: Path | None, repeated: int | None = None) -> int:
    """Returns the seed of the run in a directory; for a new run, and without a directory, a different one per call.

    A run that repeats another one has the seed of that, `repeated`.

    It follows from the global random generators and from the number of calls since they were seeded, so that
    `keras.utils.set_random_seed` makes a program repeatable; no number is drawn from them. Calls that resume a run are
    counted, too: the next one gets the seed that it would have had without the interruption.
    """
    digest = hashlib.sha256(json.dumps(random_state.get()).encode())
    state, seed = digest.hexdigest(), rng_utils.get_random_seed()
    seeded = seed is not None and not isinstance(seed, _CountedSeed)
    if seeded:
        global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, _CountedSeed(seed))
    _last["calls"] = 0 if seeded or state != _last["state"] else _last["calls"] + 1
    _last["state"] = state
    digest.update(int(_last["calls"]).to_bytes(8, "big"))
    stored = None if directory is None else stored_seed(directory)
    stored = repeated if stored is None else stored
    return int.from_bytes(digest.digest()[:4], "big") >> 1 if stored is None else stored
