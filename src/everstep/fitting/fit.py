"""`everstep.fit`: `model.fit` on the core, with its guarantees."""

import contextlib
import functools
import inspect
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.data.arrays import ArrayStream
from everstep.data.iterables import is_one_shot
from everstep.data.mapped import MappedStream, class_weighted
from everstep.data.source import make_stream, makes_batches
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError
from everstep.experiment import run_experiment
from everstep.experiment_config import ExperimentConfig
from everstep.fitting.arguments import (
    Counts,
    class_weights,
    refuse_unknown,
    shuffling,
    validated_epochs,
    verbosity,
    whole,
)
from everstep.fitting.config import data_params, task_params, trainer_params
from everstep.fitting.epoch_lines import EpochLines
from everstep.fitting.kept_engine import FitTrainer
from everstep.fitting.lengths import counted, read_once_for_evaluations
from everstep.fitting.samples import evaluation_data, samples_in, split, training_data
from everstep.fitting.seed import choose_seed
from everstep.loop.epochs import EpochController
from everstep.loop.given_callbacks import accepted
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.learning_rate import LearningRate
from everstep.remote.working import working_copy
from everstep.run.signals import as_python_interrupts
from everstep.task.compiled import CompiledTask, needs_labels, require_compiled
from everstep.task.description import describe, leave


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
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
      y: Labels, where x is arrays without them.
      batch_size: Samples per step, for arrays and datasets of single samples. None for 32; for arrays with
        `steps_per_epoch`, for as many as divide them into those steps.
      epochs: The epoch to train to; a resumed run does not start to count anew.
      verbose: 0 prints nothing, 1 or "auto" progress, 2 a line per epoch.
      callbacks: A Keras callback, or several.
      validation_split: The part of the arrays, the last before shuffling, to evaluate instead of training on it.
      validation_data: What to evaluate at an epoch's end; in its place `validation_split` is not looked at.
      shuffle: Whether arrays are shuffled, anew each epoch.
      class_weight: Weight of each class in the loss.
      sample_weight: Weight of each sample in the loss, where x is arrays.
      initial_epoch: The epoch that a run begins with; one that resumes goes on where it was.
      steps_per_epoch: Steps of an epoch; needed where the data does not say how many batches it has.
      validation_steps: Batches per evaluation; None for all.
      validation_batch_size: Samples per batch of an evaluation; None for `batch_size`.
      validation_freq: Evaluate every so many epochs; or a list of the epochs, the first of which is 1.
      model_dir: The run directory, or its URL in a store: run the same call again and it resumes there. None keeps
        nothing.
      seed: Of the order of the data. None takes the one of the run in `model_dir`; for a new run another one at each
        call, which follows from `keras.utils.set_random_seed` where that was called.
      allow_change: Keys, such as `task.optimizer.learning_rate`, that a resumed run may change although they alter
        what it computes; one that holds others, such as `task.model`, covers them. The refusal names the keys.
      watch: Which of the logs has to stay finite, of a model whose own `train_step` returns no `loss`; the first one
        by default.
      **unknown: Refused by name.

    Returns:
      The History, as `model.fit` returns it; of a run that was resumed, that of all its epochs.

    Raises:
      UsageError: The call cannot be carried out, or would resume a run that was trained otherwise.
      TrainingError: Training has failed; with `model_dir`, also where the weights are not finite at an epoch's end.
        The History so far is in the attribute `history` of this error, as of any other.
    """
    refuse_unknown(unknown, [name for name in inspect.signature(fit).parameters if name != "unknown"])
    require_compiled(model)
    numbers = (batch_size, epochs, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size)
    counts = Counts(*numbers, model.steps_per_execution or 1)
    counts = counts.limited(keras.config.max_epochs(), keras.config.max_steps_per_epoch())
    loud, shuffle, weights = verbosity(verbose), shuffling(shuffle), class_weights(class_weight)
    validated, watching = validated_epochs(validation_freq), accepted(callbacks, keeps=bool(model_dir))
    data = training_data(x, y, sample_weight, _inputs(model), needs_labels(model))
    data, held_out = _parts(data, validation_data, validation_split, needs_labels(model, "test_step"))
    seed = None if seed is None else whole("seed", seed, least=0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(as_python_interrupts())
        stack.enter_context(_silent_log() if not loud else contextlib.nullcontext())
        directory = Path(stack.enter_context(_directory(model_dir)))
        seed = choose_seed(directory) if seed is None else seed
        stack.enter_context(backend.prepared(seed))
        train = _train_stream(data, counts, shuffle, weights, seed)
        validation = None if held_out is None else _validation_stream(held_out, counts, seed, validated)
        train, lengths = counted(train, data, counts.epoch_steps)
        spec = describe(model)
        params = ExperimentConfig(
            task=task_params(spec, counts, data, held_out, shuffle, weights),
            trainer=trainer_params(counts, lengths, validation_freq, bool(model_dir)),
            runtime=RuntimeConfig(seed=seed),
        )
        task = CompiledTask(model, train, validation, params.task, watch=watch)
        callback_list = KerasCallbacks(
            *(watching, model, counts.epochs, lengths, validated if validation is not None else False),
            first_epoch=counts.initial_epoch,
            verbose=verbose,
            told=EpochLines(counts.epochs) if loud == 2 else lambda epoch, logs: None,
        )
        stack.callback(leave, model, spec)
        trainers: list[FitTrainer] = []

        def create(params: ExperimentConfig) -> FitTrainer:
            trainers.append(FitTrainer(params, task, model, model.optimizer, evaluate=validation is not None))
            return trainers[0]

        stack.push(functools.partial(_give_history, callback_list))
        run_experiment(
            None,
            task,
            "train" if validation is None else "train_and_eval",
            params,
            directory,
            save_summary=bool(model_dir),
            trainer=create,
            controller_cls=functools.partial(_controller, spec.learning_rate, callback_list, bool(model_dir)),
            export=bool(model_dir),
            verbose=loud,
            allow_change=allow_change,
            keep=bool(model_dir),
        )
        trainers[0].keep()
    return callback_list.history


def _give_history(callbacks: KerasCallbacks, kind: Any, error: BaseException | None, frames: Any) -> None:
    """What was trained before an error is in its `history`."""
    if error is not None:
        error.history = callbacks.history  # type: ignore[attr-defined]


@contextlib.contextmanager
def _silent_log() -> Iterator[None]:
    """Inside the block warnings go only to who has set up `logging`; without that, Python prints them."""
    log, nothing = logging.getLogger("everstep"), logging.NullHandler()
    log.addHandler(nothing)
    try:
        yield
    finally:
        log.removeHandler(nothing)


def _directory(model_dir: str | Path | None) -> contextlib.AbstractContextManager[Any]:
    """Yields the run's directory on this machine; for a call that keeps nothing, one that is gone afterwards."""
    return working_copy(model_dir) if model_dir else tempfile.TemporaryDirectory()


def _controller(rate: float | None, callbacks: KerasCallbacks, keep: bool, **kwargs: Any) -> EpochController:
    controller = EpochController(callbacks=callbacks, keep=keep, **kwargs)
    controller.saver.parts.append(LearningRate(controller.trainer, rate))
    return controller


def _inputs(model: keras.Model) -> int | None:
    """Returns how many inputs a model has; None where it does not say before it is built."""
    return len(getattr(model, "inputs", None) or ()) or None


def _parts(data: Any, validation_data: Any, validation_split: Any, labelled: bool) -> tuple[Any, Any]:
    """Returns what is trained on, and what is evaluated, None for nothing."""
    if validation_data is not None or not validation_split:
        return data, evaluation_data(validation_data, labelled)
    return split(data, validation_split)


def _train_stream(
    data: Any, counts: Counts, shuffle: bool, class_weight: Mapping[int, float] | None, seed: int
) -> Stream:
    stream = _stream(data, counts.size(samples_in(data)), True, shuffle, seed)
    if counts.batch_size is not None and makes_batches(data):
        warnings.warn(
            f"batch_size={counts.batch_size} is not used: a {type(data).__name__} makes its own batches", stacklevel=3
        )
    return MappedStream(stream, class_weighted(class_weight)) if class_weight else stream


def _validation_stream(data: Any, counts: Counts, seed: int, validated: Callable[[int], bool]) -> Stream:
    if is_one_shot(data):
        often = sum(map(validated, range(counts.initial_epoch, counts.epochs)))
        return read_once_for_evaluations(data, counts.validation_steps, often)
    stream = _stream(data, counts.validation_size(samples_in(data)), False, False, seed)
    if counts.validation_steps is None and stream.infinite:
        raise UsageError(
            "validation_steps: the validation data has no end: pass validation_steps=…, batches to evaluate"
        )
    return stream


def _stream(data: Any, batch_size: int, training: bool, shuffle: bool, seed: int) -> Stream:
    params = data_params(batch_size, training)
    if is_one_shot(data):
        params = params.replace(repeat=False)
    stream = make_stream(data, params, training=training, seed=seed, shuffle=shuffle)
    if isinstance(stream, ArrayStream) and stream is not data:
        return ArrayStream(stream.arrays, batch_size, shuffle=shuffle, seed=seed, repeat=training)
    return stream
