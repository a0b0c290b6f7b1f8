"""`everstep.fit`: `model.fit` on the core, with its guarantees.

Arguments that all entry points share, such as `validation_freq`, are handled by `frontends/compiled.py`.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import math
import numbers
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal

import keras

from everstep.checkpoint.remote import is_url, working_copy
from everstep.data import (
    CountedStream,
    DataConfig,
    EmptyDataError,
    IterableStream,
    LimitedStream,
    MappedStream,
    Stream,
    class_weighted,
    is_one_shot,
    left_out,
    make_stream,
    makes_batches,
)
from everstep.engine import backend, preprocesses
from everstep.errors import DivergedError, KeyNames, UsageError, nearest, problems_under
from everstep.export import chosen_formats
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
from everstep.frontends.fit.best_epoch import best_epoch
from everstep.frontends.fit.final_report import FinalReport
from everstep.frontends.fit.labelling import labels_of
from everstep.frontends.fit.preprocessing import preprocessed
from everstep.frontends.fit.samples import evaluation_data, samples_in, split, training_data
from everstep.frontends.fit.tracking import tracking_config
from everstep.gang import current_gang
from everstep.keras_internals import global_state, rng_utils
from everstep.loop import accepted, random_state
from everstep.run import announcements, closing_rows, exported_files, program_run, shorten_uncaught_errors, stored_seed
from everstep.task import needs_labels, require_compiled
from everstep.tracking import TrackingConfig

logger = logging.getLogger(__name__)

_OLD = {
    "data": "it is called x, and the labels may go in as y",
    "max_queue_size": "set it on the data: keras.utils.PyDataset(max_queue_size=…)",
    "nb_epoch": "it is called epochs",
    "use_multiprocessing": "set it on the data: keras.utils.PyDataset(use_multiprocessing=…)",
    "workers": "set it on the data: keras.utils.PyDataset(workers=…)",
}
"""Former names of arguments, in Keras or here, and what to write now."""


NAMES: KeyNames = {
    **compiled.NAMES,
    "task.train_data.global_batch_size": "batch_size",
    "task.validation_data.global_batch_size": "validation_batch_size",
    "task.train_data.repeat": None,
    "task.train_data": "x",
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
        size = counts.size(samples_in(data))
        train = _train_stream(model, data, counts, size, shuffle, weights, seed)
        train, batches = _counted(train, data, counts.epoch_steps)
        validation, validation_size = _validation_stream(model, held_out, counts, size, seed, is_validated)
        task = FitConfig(
            train_data=_data_config(size, True),
            validation_data=_data_config(validation_size, False),
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
            run=RunPlan(
                directory,
                task,
                trainer={"tracking": tracked},
                seed=seed,
                seeds_program=False,
                deterministic=exact,
                keep=bool(model_dir),
                verbose=verbose,
                allow_change=allow_change,
                names=NAMES,
                has_command=False,
                export=formats,
                labels=labels,
                at_end=final.evaluate,
                record={**({"classes": classes.names} if classes.names else {}), **(placed.record() if placed else {})},
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


# -- arguments ---------------------------------------------------------------------------------------------------------


def require_place(model_dir: Any) -> None:
    """Refuses what is no directory for a run.

    Raises:
      UsageError: It is no path, or a directory of several runs, which a run in it would hide.
    """
    if not model_dir or is_url(model_dir):
        return
    if not isinstance(model_dir, str | os.PathLike):
        reason = f"expected a path, not a {type(model_dir).__name__}"
        raise UsageError(reason, key="model_dir", received=model_dir)
    place = Path(model_dir)
    if not (place / "run.json").exists() and (found := sorted(place.glob("*/run.json"))):
        raise UsageError(
            f"holds other runs, such as {found[0].parent.name!r}, which a run in it would hide",
            key="model_dir",
            received=str(place),
            remedy=f"name a new directory in it, such as {str(place / 'mine')!r}",
        )


def refuse_without_directory(**given: Any) -> None:
    """Refuses arguments that say something about a run that is kept, in a call that keeps none.

    Raises:
      UsageError: There is one.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError("there is no run directory", key=name, received=value, remedy="pass model_dir=…")


def refuse_unknown(given: Mapping[str, Any], known: list[str]) -> None:
    """Refuses keywords that `fit` does not have.

    Raises:
      UsageError: There is one; names it, and what to write instead.
    """
    for name in given:
        raise UsageError("fit() has no such argument", key=name, remedy=_OLD.get(name) or nearest(name, known))


def whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number as Python's.

    Raises:
      UsageError: It is no whole number, or too small.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise UsageError(f"expected a whole number, not a {type(value).__name__}", key=name, received=value)
    if value < least:
        raise UsageError(f"must be at least {least}", key=name, received=int(value))
    return int(value)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The arguments that are numbers; None where the data decides.

    Raises:
      UsageError: One of them is invalid; names it.
    """

    batch_size: int | None
    epochs: int
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    steps_per_execution: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, needed = getattr(self, field.name), field.name in ("epochs", "initial_epoch")
            if value is not None or needed:
                least = 0 if needed else 1
                object.__setattr__(self, field.name, whole(field.name, value, least))

    @property
    def epoch_steps(self) -> int | None:
        """Returns the steps of an epoch: Keras runs `steps_per_execution` of them at a time, the last ones too."""
        return _rounded_up(self.steps_per_epoch, self.steps_per_execution)

    @property
    def evaluation_steps(self) -> int | None:
        """Returns the same for an evaluation."""
        return _rounded_up(self.validation_steps, self.steps_per_execution)

    def limited(self, epochs: int | None, steps: int | None) -> "Counts":
        """Returns the numbers within the limits of `keras.config.set_max_epochs` and `set_max_steps_per_epoch`."""
        limits = {"epochs": epochs, "steps_per_epoch": steps, "validation_steps": steps}
        lower = {
            k: most for k, most in limits.items() if most and (getattr(self, k) is None or most < getattr(self, k))
        }
        for name, most in lower.items():
            if name != "validation_steps":
                warnings.warn(f"Limiting {name} to {most}", stacklevel=3)
        return dataclasses.replace(self, **lower)

    def size(self, samples: int | None) -> int:
        """Returns the batch size as Keras chooses it; `samples` is the number of samples of arrays, else None."""
        return self.batch_size or _divided(samples, self.steps_per_epoch)

    def validation_size(self, samples: int | None) -> int:
        """Returns the same for an evaluation."""
        return self.validation_batch_size or self.batch_size or _divided(samples, self.validation_steps)


def _rounded_up(steps: int | None, multiple: int) -> int | None:
    return None if steps is None else -(-steps // multiple) * multiple


def _divided(samples: int | None, steps: int | None) -> int:
    return -(-samples // steps) if samples and steps else 32


def shuffling(shuffle: Any) -> bool:
    """Returns whether to shuffle.

    Raises:
      UsageError: It is not a bool.
    """
    if not isinstance(shuffle, bool):
        raise UsageError("expected True or False", key="shuffle", received=shuffle)
    return shuffle


def class_weights(class_weight: Any) -> dict[int, float] | None:
    """Returns the weights by class.

    Raises:
      UsageError: They are not numbers by the number of a class.
    """
    if class_weight is None:
        return None
    wanted = "expected a dict such as {0: 1.0, 1: 5.0}"
    try:
        weights = {int(label): float(weight) for label, weight in class_weight.items()}
    except (AttributeError, TypeError, ValueError):
        raise UsageError(wanted, key="class_weight", received=class_weight) from None
    if not weights or min(weights) < 0:
        raise UsageError(f"{wanted}, with classes from 0 on", key="class_weight", received=class_weight)
    if not all(map(math.isfinite, weights.values())):
        raise UsageError(f"{wanted}, with finite weights", key="class_weight", received=class_weight)
    return weights


def export_formats(export: Any, model: keras.Model, model_dir: Any) -> list[str]:
    """Returns the formats to export; none for a call that keeps nothing.

    Raises:
      UsageError: One of them is unknown, or not of this model or backend; or there is no directory to write it to.
    """
    formats = chosen_formats(export, model)
    if model_dir:
        return formats
    if others := [name for name in formats if name != "keras"]:
        raise UsageError(
            "there is no run directory to write it to", key="export", received=others[0], remedy="pass model_dir=…"
        )
    return []


# -- data --------------------------------------------------------------------------------------------------------------


def _data_config(batch_size: int, training: bool) -> DataConfig:
    return DataConfig(global_batch_size=batch_size, is_training=training, drop_remainder=False)


def _train_stream(
    model: keras.Model,
    data: Any,
    counts: Counts,
    size: int,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    seed: int,
) -> Stream:
    config = _data_config(size, True)
    if is_one_shot(data):
        config = config.replace(repeat=False)
    stream = make_stream(data, config, training=True, seed=seed, shuffle=shuffle)
    if counts.batch_size is not None and makes_batches(data):
        warnings.warn(
            f"batch_size={counts.batch_size} is not used: the {type(data).__name__} makes its own batches", stacklevel=3
        )
    stream = preprocessed(stream, model, data)
    return MappedStream(stream, class_weighted(class_weight)) if class_weight else stream


def _validation_stream(
    model: keras.Model, data: Any, counts: Counts, size: int, seed: int, is_validated: Callable[[int], bool]
) -> tuple[Stream | None, int]:
    """Returns the batches to evaluate, and their size; None if there are none: as in Keras, nothing is evaluated.

    Raises:
      UsageError: The data cannot be read, has no end, or the first of several evaluations would read all of it.
    """
    if data is None:
        return None, size
    try:
        own_size = counts.validation_size(samples_in(data))
        stream = _evaluated_stream(data, counts, own_size, seed, is_validated)
        _read_first(stream)
    except EmptyDataError:
        logger.warning("validation_data is empty: nothing is evaluated")
        return None, size
    return preprocessed(stream, model, data), own_size


def _evaluated_stream(data: Any, counts: Counts, size: int, seed: int, is_validated: Callable[[int], bool]) -> Stream:
    """Returns the batches to evaluate; each evaluation of a generator continues where the one before has ended."""
    if not is_one_shot(data):
        stream = make_stream(data, _data_config(size, False), training=False, seed=seed, shuffle=False)
        if counts.validation_steps is None and stream.epoch_never_ends:
            raise UsageError(
                "the validation data has no end", key="validation_steps", remedy="pass the batches to evaluate"
            )
        return stream
    stream = IterableStream(data, reads_on=True)
    if counts.validation_steps is not None:
        return LimitedStream(stream, counts.validation_steps)
    evaluations = sum(map(is_validated, range(counts.initial_epoch, counts.epochs)))
    if evaluations > 1:
        raise UsageError(
            f"a {type(data).__name__} can be read only once, but there are {evaluations} evaluations",
            key="validation_data",
            remedy="pass the function that makes it, without calling it, or validation_steps=…, batches of each",
        )
    return stream


def _read_first(stream: Stream) -> None:
    """Reads the first batch to evaluate, which the stream keeps.

    Raises:
      EmptyDataError: There is none.
      UsageError: It cannot be read.
    """
    try:
        stream.peek()
    except EmptyDataError:
        raise
    except UsageError as error:
        raise UsageError(problems_under("validation_data", error)) from error


def _counted(stream: Stream, data: Any, steps: int | None) -> tuple[Stream, int | None]:
    """Returns the stream and the batches per epoch; if their number is unknown, the first pass counts them.

    Args:
      stream: The training stream.
      data: The source of the stream; a PyTorch DataLoader knows its number of batches.
      steps: `steps_per_epoch`.

    Raises:
      UsageError: The data has no end, and there is no `steps_per_epoch`.
    """
    if stream.epoch_never_ends:
        if steps is None:
            raise UsageError(
                "the data has no end, so an epoch has none either",
                key="steps_per_epoch",
                remedy="pass steps_per_epoch=…",
            )
        return stream, None
    batches = stream.batches_per_epoch
    if batches is None:
        with contextlib.suppress(TypeError, NotImplementedError):  # a DataLoader of an IterableDataset
            batches = len(data) if isinstance(data, Sized) else None
    return stream if batches is not None else CountedStream(stream), batches


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
