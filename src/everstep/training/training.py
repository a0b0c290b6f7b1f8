"""`Training`: a Keras model trained as a job that may be ended at any moment and started again."""

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.data.config import DataConfig
from everstep.data.record_arguments import whole_number
from everstep.data.source import make_stream
from everstep.data.special import first_samples
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.strategy import entered
from everstep.errors import TrainingError, UsageError
from everstep.experiment import run_experiment
from everstep.export.folder import serving_form
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.run.signals import as_python_interrupts
from everstep.task.compiled import CompiledTask
from everstep.task.description import describe, leave
from everstep.task.task import unpack
from everstep.training import pipeline_files
from everstep.training.arguments import check_kinds, checked_keys, checked_places, checked_seed
from everstep.training.building import build_model, known_objects, named
from everstep.training.devices import choose_strategy, make_optimizer
from everstep.training.history_file import as_history, history_csv
from everstep.training.input_size import Size, input_size
from everstep.training.job_controller import JobController
from everstep.training.publishing import place_for, publish
from everstep.training.saving import refuse_what_is_not_finite, sample_inputs
from everstep.training.settings import experiment_config
from everstep.training.wording import own_words


class Training:
    """Trains a model in a job's directory; run again after any end, it goes on to the step.

        t = Training(build_model_func=build, job_dir="jobs/17", artifacts_dir="artifacts/17", optimizer="adam",
                     loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        history = t.run_train(train_ds, valid_ds, epochs=10)

    Args:
      build_model_func: Makes the model, not compiled.
      job_dir: The run directory, or its URL in a store, `gs://bucket/tmp/faces/17`: the same in every attempt.
      artifacts_dir: Where `run_train` leaves `saved_model/` (on PyTorch `model.pt2`) and `history.csv`, a directory or
        a URL; empty: it leaves none, and what `save_model` and `save_history` write goes to `artifacts/` in `job_dir`.
      use_tpu: Whether to train on a TPU; without one it is an error, unless `EVERSTEP_DEVICE_FALLBACK` is `cpu`.
      custom_model_class: A `keras.Model` subclass with steps of its own: the model is made one of it. One that
        `build_model_func` returns already stays as it is.
      custom_objects: Classes and functions by name: `loss="mine"` then means yours, and Keras knows them on loading.
      optimizer: As for `model.compile`.
      loss: As for `model.compile`.
      metrics: As for `model.compile`.
      seed: Seeds Python, NumPy and Keras before the model is built.
      allow_change: What a job that goes on may change although it alters what is computed: `data`, or a key such as
        `optimizer.learning_rate`. The refusal names the keys.
      verbose: Whether to print progress.

    Attributes:
      model: The compiled model.
      history: What `run_train` returned last; None before.

    Raises:
      UsageError: The request cannot be carried out.
    """

    def __init__(
        self,
        *,
        build_model_func: Callable[[], keras.Model],
        job_dir: str | os.PathLike[str],
        artifacts_dir: str | os.PathLike[str] = "",
        use_tpu: bool = False,
        custom_model_class: Any = None,
        custom_objects: Mapping[str, Any] | None = None,
        optimizer: Any,
        loss: Any,
        metrics: Any = None,
        seed: int = 0,
        allow_change: Sequence[str] = (),
        verbose: bool = True,
    ) -> None:
        check_kinds(build_model_func, use_tpu, custom_objects, optimizer)
        self.job_dir, self.artifacts_dir = checked_places(job_dir, artifacts_dir)
        self.seed, self.verbose, self._allow_change = checked_seed(seed), verbose, checked_keys(allow_change)
        self.history: keras.callbacks.History | None = None
        self._callbacks: list[keras.callbacks.Callback] = []
        self._known = functools.partial(known_objects, custom_objects, custom_model_class)
        backend.select(None)
        self.strategy = choose_strategy(use_tpu)
        backend.prepare(self.seed)
        with entered(self.strategy), self._known():
            made = make_optimizer(named(optimizer, custom_objects), self.strategy)
            loss, metrics = (named(each, custom_objects) for each in (loss, metrics))
            self.model = build_model(build_model_func, custom_model_class, made, loss, metrics)

    def model_summary(self) -> None:
        """Prints the model, layer by layer."""
        self.model.summary()

    def get_model_input_size(self, name: str | None = None) -> Size:
        """Returns the size of the model's images: 112 where they are square, else (height, width).

        An input that is no image, as the label of a model with two inputs, does not count.

        Args:
          name: Of an input, where images of several sizes go in.

        Raises:
          UsageError: The model does not say, or its inputs differ; lists them.
        """
        return input_size(self.model, name)

    def add_callback(self, callback: keras.callbacks.Callback) -> None:
        """Adds a Keras callback; what it remembers goes on with the job.

        Raises:
          UsageError: It is none.
        """
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(f"add_callback: received {callback!r}, expected a keras.callbacks.Callback")
        self._callbacks.append(callback)

    def add_callbacks(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Adds several; see `add_callback`."""
        if isinstance(callbacks, keras.callbacks.Callback) or not isinstance(callbacks, Iterable):
            raise UsageError(f"add_callbacks: received {callbacks!r}, expected a list; add_callback takes a single one")
        for callback in callbacks:
            self.add_callback(callback)

    def run_train(
        self,
        train_ds: Any,
        valid_ds: Any = None,
        epochs: int = 1,
        *,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
    ) -> keras.callbacks.History:
        """Trains until `epochs` epochs are done in all, from wherever the job is; then leaves the artifacts.

        Args:
          train_ds: What `get_train_ds` returns, a `tf.data.Dataset`, arrays `(x, y)`, or a `Stream`.
          valid_ds: The same for the evaluation at each epoch's end; None for none.
          epochs: The total, also of a job that goes on.
          steps_per_epoch: Needed where the data does not say how many batches an epoch has.
          validation_steps: Batches per evaluation; None for all.

        Returns:
          The history of all epochs, also of those in earlier attempts.

        Raises:
          UsageError: The request cannot be carried out, or would go on with a job that was trained otherwise.
          TrainingError: The job started and failed. Nothing that is not finite is saved or exported; `history.csv` is
            written, and its last row is the epoch that the loss was not finite in.
        """
        epochs = whole_number("epochs", epochs)
        validation_steps = None if validation_steps is None else whole_number("validation_steps", validation_steps)
        with place_for(self.artifacts_dir):
            backend.prepare(self.seed)
            train = _stream(train_ds, True, self.seed)
            valid = None if valid_ds is None else _stream(valid_ds, False, self.seed)
            trainer = self._run(train, valid, epochs, _steps(train, steps_per_epoch), validation_steps)
            if self.artifacts_dir:
                self._save_as_evaluated(trainer)
                self.save_history()
        return self._known_history()

    def save_model(self, sample: Any = None) -> str:
        """Writes the model as it is now to `saved_model/` in `artifacts_dir`, without its optimizer; returns where.

        Without an `artifacts_dir` it goes to `artifacts/` in `job_dir`.

        On PyTorch, which cannot write a SavedModel, it is `model.pt2`, a program for `torch.export.load`.

        `run_train` does it at its end. A loop of one's own calls it when it is done. What was written is loaded back
        and compared before it takes its name.

        Args:
          sample: A batch of inputs to compare with; needed only where the model does not say what goes into it.

        Raises:
          UsageError: A sample is needed.
          TrainingError: A weight is not finite, or what was written does not answer as the model does.
        """
        name, write = serving_form()
        target = f"{self._artifacts().rstrip('/')}/{name}"
        refuse_what_is_not_finite(self.model)
        with place_for(self._artifacts()), tempfile.TemporaryDirectory() as folder, self._known():
            inputs = sample_inputs(self.model) if sample is None else sample
            write(self.model, Path(folder, name), inputs)
            publish(Path(folder, name), target)
        return target

    def save_history(self, history: Any = None) -> str:
        """Writes `history.csv` to `artifacts_dir`: a row per epoch of all attempts; returns where it is.

        Without an `artifacts_dir` it goes to `artifacts/` in `job_dir`.

        Args:
          history: That of a loop of one's own: a Keras `History`, or a list of numbers for each metric by its name,
            which becomes `self.history`. None for that of `run_train`.

        Raises:
          UsageError: Nothing was trained yet, or it is no history.
        """
        if history is not None:
            self.history = as_history(history)
        known, target = self._known_history(), f"{self._artifacts().rstrip('/')}/history.csv"
        with place_for(self._artifacts()), tempfile.TemporaryDirectory() as folder:
            table = Path(folder, "history.csv")
            storage.write_text(table, history_csv(known.epoch, known.history))
            publish(table, target)
        return target

    def save_pipeline_metadata(
        self,
        ui_metadata: str | os.PathLike[str] = "mlpipeline-ui-metadata.json",
        metrics: str | os.PathLike[str] = "mlpipeline-metrics.json",
    ) -> None:
        """Writes what Kubeflow Pipelines shows of a component: the place of its logs, and its last numbers.

        Args:
          ui_metadata: The file that tells it of TensorBoard.
          metrics: The file with the numbers.

        Raises:
          UsageError: Nothing was trained yet.
        """
        history = self._known_history()
        storage.write_json(ui_metadata, pipeline_files.ui_metadata(f"{self.job_dir.rstrip('/')}/logs"))
        storage.write_json(metrics, pipeline_files.metrics(history.history))

    def _run(self, train: Stream, valid: Stream | None, epochs: int, steps: int, validation_steps: int | None) -> Any:
        """Runs the experiment; returns the trainer, which is done."""
        told, made = describe(self.model), []
        records = {"train_records": getattr(train, "facts", {}), "valid_records": getattr(valid, "facts", {})}
        params = experiment_config(told, epochs, steps, validation_steps, self.seed, records)
        callbacks = KerasCallbacks(self._callbacks, self.model, epochs, steps, valid is not None)

        def controller(**kwargs: Any) -> JobController:
            made.append(JobController(callbacks=callbacks, learning_rate=told.learning_rate, **kwargs))
            return made[0]

        with contextlib.ExitStack() as stack:
            stack.callback(leave, self.model, told)
            stack.enter_context(self._known())
            stack.enter_context(as_python_interrupts())
            stack.enter_context(own_words())
            stack.enter_context(self._told_of_failure(callbacks))
            run_experiment(
                self.strategy,
                CompiledTask(self.model, train, valid, params.task),
                "train" if valid is None else "train_and_eval",
                params,
                self.job_dir,
                controller_cls=controller,
                experiment=type(self).__name__,
                export=False,
                verbose=self.verbose,
                allow_change=self._allow_change,
            )
        self.history = callbacks.history
        return made[0].trainer

    @contextlib.contextmanager
    def _told_of_failure(self, callbacks: KerasCallbacks) -> Iterator[None]:
        """Writes `history.csv` also where the loss is not finite: whoever waits for it learns that the job is over.

        After any other failure the job may be tried again, and its history is not complete.
        """
        try:
            yield
        except TrainingError:
            loss = callbacks.history.history.get("loss", [])
            if loss and not math.isfinite(loss[-1]):
                self.history = callbacks.history
                if self.artifacts_dir:
                    self.save_history()
            raise

    def _save_as_evaluated(self, trainer: Any) -> None:
        """Saves the model with the weights that it was evaluated with: their averages, where there are such."""
        sample = first_samples(unpack(trainer.example)[0], 8)
        with trainer.averaged():
            trainer.engine.push()
            self.save_model(sample)
        trainer.engine.push()

    def _artifacts(self) -> str:
        """Returns where `save_model` and `save_history` write: without `artifacts_dir`, inside the job's directory."""
        return self.artifacts_dir or f"{self.job_dir.rstrip('/')}/artifacts"

    def _known_history(self) -> keras.callbacks.History:
        if self.history is None:
            raise UsageError("there is no history yet: call run_train first, or hand one over: save_history(history)")
        return self.history


def _stream(data: Any, training: bool, seed: int) -> Stream:
    try:
        return make_stream(data, DataConfig(drop_remainder=False), training=training, seed=seed)
    except UsageError as error:
        raise UsageError(f"{'train_ds' if training else 'valid_ds'}: {error}") from error


def _steps(stream: Stream, steps_per_epoch: int | None) -> int:
    if steps_per_epoch is not None:
        return whole_number("steps_per_epoch", steps_per_epoch)
    steps = stream.batches_per_epoch
    if steps is None:
        raise UsageError("steps_per_epoch: the data does not say how many batches an epoch has; pass steps_per_epoch=…")
    if steps < 1:
        raise UsageError("train_ds: it has no batch at all; give it data")
    return steps
