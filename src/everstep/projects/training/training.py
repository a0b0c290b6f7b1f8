"""`Training`: a Keras model trained as a job that may be stopped at any moment and started again."""

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from everstep import storage
from everstep.checkpoint.remote import checked, is_url, refuse_lost_slash
from everstep.data import DataConfig, Stream, left_out, make_stream, makes_batches, place, whole_number
from everstep.engine import backend, entered
from everstep.errors import KeyNames, TrainingError, UsageError, nearest, problems_under, renamed_keys
from everstep.export import evaluated_weights, refuse_non_finite, sample_inputs, serving_format
from everstep.frontends import CompiledTaskConfig, RunPlan, Verbose, compiled, log_output, train_compiled, verbosity
from everstep.projects import require_losses, require_metrics, require_optimizer
from everstep.projects.training.artifacts import missing, publish, writable
from everstep.projects.training.building import (
    Size,
    build_model,
    check_function,
    choose_strategy,
    input_size,
    known_objects,
    make_optimizer,
    named,
)
from everstep.projects.training.job_files import JobFiles
from everstep.projects.training.own_loop_history import as_history
from everstep.projects.training.pipeline_job import kubeflow_metrics, kubeflow_ui_metadata
from everstep.run import Run, is_repetition, print_line, program_run
from everstep.tracking import epoch_table

DATA = "data"

ARTIFACTS, MODEL, HISTORY = "artifacts", "model", "history"
"""The entry of `run.json` about `artifacts_dir`, and the two kinds of files in it."""

NAMES: KeyNames = {
    **compiled.NAMES,
    "task.optimizer": "optimizer",
    "task.loss_weights": "loss_weights",
    "task.loss": "loss",
    "task.model": "model",
    "task.steps_per_epoch": "steps_per_epoch",
    "task.train_data.global_batch_size": "batch_size",
    "task.train_records": "train_ds",
    "task.valid_records": "valid_ds",
    "task.train_data.repeat": None,
    "task.train_data": "train_ds",
    "task.validation_data": "valid_ds",
    "trainer.validation_steps": "validation_steps",
    "runtime.seed": "seed",
    "runtime.backend": "backend",
    "model_dir": "job_dir",
    "x": "train_ds, valid_ds",
    "y": "train_ds, valid_ds",
}
"""Keys of the loop, and the arguments that users know them by: for errors, and in reverse for `allow_change`."""


@dataclasses.dataclass
class JobConfig(CompiledTaskConfig):
    """The model as it was compiled, and the settings of its data."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"init_checkpoint", "validation_data", "name", "valid_records"})

    train_records: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The files, percentage, batch size and seed of TFRecord training data."""
    valid_records: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The same for the validation data."""
    steps_per_epoch: int = 0
    """The number of batches per epoch, by which epochs are counted."""


class Training:
    """Trains a model in a job's directory; run again after any interruption, it resumes at the exact step.

        t = Training(build_model_func=build, job_dir="jobs/17", artifacts_dir="artifacts/17", optimizer="adam",
                     loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        history = t.run_train(train_ds, valid_ds, epochs=10)

    Args:
      build_model_func: Builds the model, not compiled.
      job_dir: The run directory, or its URL in a store, `gs://bucket/tmp/faces/17`: the same in every attempt.
      artifacts_dir: Where `run_train` writes `saved_model/` (on PyTorch `model.pt2`) and `history.csv`, a directory or
        a URL. Empty: it writes none, and `save_model` and `save_history` write to `artifacts/` in `job_dir`.
      use_tpu: Whether to train on a TPU; without one it is an error, unless `EVERSTEP_DEVICE_FALLBACK` is `cpu`.
      custom_model_class: A `keras.Model` subclass with custom steps, which the model is converted to. A model that
        already is one stays as it is.
      custom_objects: Classes and functions by name, for `loss="mine"` and for loading models.
      optimizer: As for `model.compile`.
      loss: As for `model.compile`.
      metrics: As for `model.compile`.
      seed: Seeds Python, NumPy and Keras before the model is built.
      allow_change: What a resumed job may change although it alters what is computed: `data`, or a key such as
        `optimizer.learning_rate`. The refusal names the keys.
      verbose: 0 or False prints nothing, 1, True or "auto" progress, 2 a line per epoch.

    Attributes:
      model: The compiled model.
      history: What `run_train` returned last; None before.

    Raises:
      UsageError: The request is invalid.
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
        verbose: Verbose = True,
    ) -> None:
        check_function(build_model_func)
        if not isinstance(use_tpu, bool | np.bool_):
            raise UsageError("expected True or False", key="use_tpu", received=use_tpu)
        if custom_objects is not None and not isinstance(custom_objects, Mapping):
            raise UsageError("expected a dictionary of names", key="custom_objects", received=custom_objects)
        if optimizer is None:
            raise UsageError("expected an optimizer of Keras or its name", key="optimizer", received=None)
        self.job_dir, self.artifacts_dir = _checked_places(job_dir, artifacts_dir)
        self.__program = program_run(self.job_dir)
        if (
            redirected := str(self.__program.directory)
        ) != self.job_dir:  # the program is repeated: its job is only read
            self.artifacts_dir = f"{redirected}-artifacts" if self.artifacts_dir else ""
            self.job_dir = redirected
        self.seed, self.verbose = whole_number("seed", seed, 0, 2**32 - 1), verbosity(verbose)  # NumPy's seeds
        self.__allow_change = core_keys(allow_change)
        self.history: keras.callbacks.History | None = None
        self.__callbacks: list[keras.callbacks.Callback] = []
        self.__published: dict[str, list[str]] = {}  # the files of the model and of the history, as they were written
        self.__known = functools.partial(known_objects, custom_objects, custom_model_class)
        backend.select(None)
        self.strategy = choose_strategy(bool(use_tpu))
        with renamed_keys(NAMES):
            backend.prepare(self.seed)
        backend.find_devices()
        with entered(self.strategy), self.__known():
            own_optimizer = make_optimizer(named(optimizer, custom_objects), self.strategy)
            loss, metrics = (named(each, custom_objects) for each in (loss, metrics))
            require_optimizer(own_optimizer, "optimizer", custom_objects or ())
            require_losses(loss, "loss", custom_objects or ())
            require_metrics(_listed(metrics), "metrics", custom_objects or ())
            self.model = build_model(build_model_func, custom_model_class, own_optimizer, loss, metrics)

    def model_summary(self) -> None:
        """Prints the model, layer by layer."""
        self.model.summary()

    def get_model_input_size(self, name: str | None = None) -> Size:
        """Returns the size of the model's images: 112 where they are square, else (height, width).

        An input that is no image, as the label of a model with two inputs, does not count.

        Args:
          name: Of an input, where images of several sizes go in.

        Raises:
          UsageError: The model declares no size, or its inputs differ; lists them.
        """
        return input_size(self.model, name)

    def add_callback(self, callback: keras.callbacks.Callback) -> None:
        """Adds a Keras callback; its state is saved with the job.

        Raises:
          UsageError: It is no Keras callback.
        """
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError("expected a keras.callbacks.Callback", key="callback", received=callback)
        self.__callbacks.append(callback)

    def add_callbacks(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        """Adds several; see `add_callback`."""
        if isinstance(callbacks, keras.callbacks.Callback) or not isinstance(callbacks, Iterable):
            raise UsageError(
                "expected a list", key="callbacks", received=callbacks, remedy="add_callback takes a single one"
            )
        for callback in callbacks:
            self.add_callback(callback)

    def run_train(
        self,
        train_ds: Any,
        valid_ds: Any = None,
        epochs: int = 1,
        *,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
    ) -> keras.callbacks.History:
        """Trains until `epochs` epochs are done in total, and writes the artifacts; an interrupted job resumes.

        Args:
          train_ds: What `get_train_ds` returns, a `tf.data.Dataset`, arrays `(x, y)`, or a `Stream`.
          valid_ds: The same for the evaluation at each epoch's end; None for none, or for the images that an
            `ImageSource` leaves out of training.
          epochs: The total, also of a resumed job.
          batch_size: Samples per step, for arrays and datasets of single samples; None for 32.
          steps_per_epoch: Needed where the number of batches is not known from the data.
          validation_steps: Batches per evaluation; None for all.

        Returns:
          The history of all epochs, also of those in earlier attempts.

        Raises:
          UsageError: The request is invalid, or would resume a job that was trained differently.
          TrainingError: The job started and failed. Nothing that is not finite is saved or exported; `history.csv` is
            written, and its last row is the epoch that the loss was not finite in.
        """
        self.__published = {}
        epochs = whole_number("epochs", epochs)
        validation_steps = None if validation_steps is None else whole_number("validation_steps", validation_steps)
        with log_output(self.verbose), renamed_keys(NAMES), writable(self.artifacts_dir):
            backend.prepare(self.seed)
            data = DataConfig(global_batch_size=_batch_size(batch_size, train_ds), drop_remainder=False)
            train = _stream(train_ds, data, True, self.seed)
            valid_ds = left_out(train_ds) if valid_ds is None else valid_ds
            valid = None if valid_ds is None else _stream(valid_ds, data, False, self.seed)
            steps = _steps(train, steps_per_epoch)
            files = JobFiles(self.model, steps)
            plan = RunPlan(
                self.job_dir,
                JobConfig(
                    train_data=data,
                    validation_data=data,
                    train_records=getattr(train, "facts", {}),
                    valid_records=getattr(valid, "facts", {}),
                    steps_per_epoch=steps,
                ),
                ends_diverged_epochs=False,
                seed=self.seed,
                strategy=self.strategy,
                verbose=self.verbose,
                allow_change=self.__allow_change,
                names=NAMES,
                has_command=False,
                experiment=type(self).__name__,
                record=self.__program.record(trained_by=Training.__name__),
                shows_layers=False,  # model_summary() prints them
                listeners=[files],
                at_end=functools.partial(self.__finish, files),
            )
            with self.__known(), self.__failures():
                self.history = train_compiled(
                    self.model,
                    train,
                    valid,
                    epochs,
                    steps_per_epoch=steps,
                    validation_steps=validation_steps,
                    callbacks=self.__callbacks,
                    run=plan,
                )
        if self.verbose:
            self.__say_where(len(self.history.epoch))
        return self.history

    def save_model(self, sample: Any = None) -> str:
        """Writes the model as it is now to `saved_model/` in `artifacts_dir`, without its optimizer; returns where.

        Without an `artifacts_dir` it goes to `artifacts/` in `job_dir`.

        On PyTorch, which cannot write a SavedModel, it is `model.pt2`, a program for `torch.export.load`.

        `run_train` calls it at its end; call it after a custom loop. The files are loaded back and compared before they
        get their name.

        Args:
          sample: A batch of inputs to compare with; needed only where the model declares no inputs.

        Raises:
          UsageError: A sample is needed.
          TrainingError: A weight is not finite, or what was written does not answer as the model does.
        """
        name, write = serving_format()
        target = f"{self.__artifacts().rstrip('/')}/{name}"
        refuse_non_finite(self.model)
        with writable(self.__artifacts()), tempfile.TemporaryDirectory() as folder, self.__known():
            inputs = sample_inputs(self.model) if sample is None else sample
            write(self.model, Path(folder, name), inputs)
            self.__published[MODEL] = publish(Path(folder, name), target)
        return target

    def save_history(self, history: Any = None) -> str:
        """Writes `history.csv` to `artifacts_dir`: a row per epoch of all attempts; returns where it is.

        Without an `artifacts_dir` it goes to `artifacts/` in `job_dir`.

        Args:
          history: The history of a custom loop, which becomes `self.history`: a Keras `History`, or a list of numbers
            for each metric by its name. None for that of `run_train`.

        Raises:
          UsageError: Nothing was trained yet, or `history` is no history.
        """
        if history is not None:
            self.history = as_history(history)
        known, target = self.__known_history(), f"{self.__artifacts().rstrip('/')}/history.csv"
        with writable(self.__artifacts()), tempfile.TemporaryDirectory() as folder:
            table = Path(folder, "history.csv")
            storage.write_text(table, epoch_table(known.epoch, known.history))
            self.__published[HISTORY] = publish(table, target)
        return target

    def save_pipeline_metadata(
        self,
        ui_metadata: str | os.PathLike[str] = "mlpipeline-ui-metadata.json",
        metrics: str | os.PathLike[str] = "mlpipeline-metrics.json",
    ) -> None:
        """Writes what Kubeflow Pipelines shows of a component: the place of its logs, and its last numbers.

        Args:
          ui_metadata: The file that names the TensorBoard logs.
          metrics: The file with the numbers.

        Raises:
          UsageError: Nothing was trained yet.
        """
        history = self.__known_history()
        if is_repetition():
            return  # the files are those of the job that is compared with
        storage.write_json(ui_metadata, kubeflow_ui_metadata(f"{self.job_dir.rstrip('/')}/logs"))
        storage.write_json(metrics, kubeflow_metrics(history.history))

    def __finish(self, files: JobFiles, run: Run) -> None:
        """Writes the artifacts; of a job that was finished before, only those that are missing.

        `run.json` has the files that were written, and the step of their model: an attempt that is killed between
        training and writing leaves the artifacts of an earlier step, which the next attempt has to replace.
        """
        self.history = self.model.history
        if not self.artifacts_dir:
            return
        step, before = files.controller.step, run.record.get(ARTIFACTS, {})
        if (before.get("directory"), before.get("step")) == (self.artifacts_dir, step):
            self.__published = {kind: list(names) for kind, names in before["files"].items()}
        if self.__is_incomplete(MODEL):
            sample = sample_inputs(self.model, files.controller.trainer.example_inputs)
            with evaluated_weights(self.model.optimizer):
                self.save_model(sample)
        if self.__is_incomplete(HISTORY):
            self.save_history()
        run.record[ARTIFACTS] = {"directory": self.artifacts_dir, "step": step, "files": self.__published}

    def __say_where(self, epochs: int) -> None:
        """Prints the last line of a job: where to find what it has written."""
        names = [names[0].partition("/")[0] for names in self.__published.values() if names]
        places = [f"artifacts in {self.artifacts_dir}: {', '.join(names)}"] if self.artifacts_dir else []
        places.append(f"checkpoints and logs in {self.job_dir}")
        count = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        print_line(f"done: {count}; {'; '.join(places)}")

    def __is_incomplete(self, kind: str) -> bool:
        names = self.__published.get(kind, [])
        return not names or bool(missing(self.artifacts_dir, names))

    @contextlib.contextmanager
    def __failures(self) -> Iterator[None]:
        """Writes `history.csv` where the loss is not finite: a tuner that waits for it sees that the job has ended.

        After any other failure the job may be retried, and its history is not complete.
        """
        try:
            yield
        except TrainingError as error:
            history: Any = getattr(error, "history", None)
            loss = [] if history is None else history.history.get("loss", [])
            if loss and not math.isfinite(loss[-1]):
                self.history = history
                if self.artifacts_dir:
                    self.save_history()
            raise

    def __artifacts(self) -> str:
        """Returns where `save_model` and `save_history` write: without `artifacts_dir`, inside the job's directory."""
        return self.artifacts_dir or f"{self.job_dir.rstrip('/')}/artifacts"

    def __known_history(self) -> keras.callbacks.History:
        if self.history is None:
            raise UsageError(
                "nothing was trained yet",
                key="history",
                remedy="call run_train first, or pass one: save_history(history)",
            )
        return self.history


def core_keys(allow_change: Any) -> list[str]:
    """Returns the keys that may change as the loop has them; `data` and `train_ds` are all that is trained on.

    Args:
      allow_change: Names of arguments and what is below them, such as `optimizer.learning_rate`; or keys of
        `config.yaml`. A single one need not be in a list.

    Raises:
      UsageError: They are no strings, or there is no such key.
    """
    keys = [allow_change] if isinstance(allow_change, str) else allow_change
    if not isinstance(keys, Sequence | set | frozenset) or not all(isinstance(key, str) for key in keys):
        raise UsageError('expected a list of keys, such as ["data"]', key="allow_change", received=allow_change)
    found: list[str] = []
    for key in keys:
        root, dot, rest = key.partition(".")
        if root in (DATA, "train_ds"):
            found += [DATA, "task.train_records"]
        elif root in ("task", "trainer", "runtime"):
            found.append(key)
        elif below := [f"{core}{dot}{rest}" for core, name in NAMES.items() if name == root]:
            found += below
        else:
            close = nearest(key, {DATA, *(name for core, name in NAMES.items() if name and "." in core)})
            raise UsageError("there is no such key", key="allow_change", received=key, remedy=close)
    return found


def _checked_places(job_dir: Any, artifacts_dir: Any) -> tuple[str, str]:
    """Returns both as text; refuses what is no directory or URL, or the same twice."""
    job_dir, artifacts_dir = place("job_dir", job_dir), place("artifacts_dir", artifacts_dir)
    if not job_dir:
        raise UsageError("expected a directory of the job's own", key="job_dir", received=job_dir)
    for key, text in (("job_dir", job_dir), ("artifacts_dir", artifacts_dir)):
        refuse_lost_slash(text, key)
        if is_url(text):
            checked(text, key)
    if artifacts_dir and os.path.normpath(job_dir) == os.path.normpath(artifacts_dir):
        raise UsageError(
            "is the same as job_dir", key="artifacts_dir", received=artifacts_dir, remedy="use another directory"
        )
    return job_dir, artifacts_dir


def _listed(metrics: Any) -> Any:
    if isinstance(metrics, str):
        raise UsageError("expected a list of metrics", key="metrics", received=metrics, remedy=f"write [{metrics!r}]")
    return metrics


def _batch_size(given: Any, train_ds: Any) -> int:
    if given is None:
        return DataConfig().global_batch_size
    if makes_batches(train_ds):
        reason, remedy = "but train_ds comes in batches already", "leave it out, and set the size where they are made"
        raise UsageError(reason, key="batch_size", received=given, remedy=remedy)
    return whole_number("batch_size", given)


def _stream(data: Any, config: DataConfig, training: bool, seed: int) -> Stream:
    try:
        return make_stream(data, config, training=training, seed=seed)
    except UsageError as error:
        raise UsageError(problems_under("train_ds" if training else "valid_ds", error)) from error


def _steps(stream: Stream, steps_per_epoch: int | None) -> int:
    if steps_per_epoch is not None:
        return whole_number("steps_per_epoch", steps_per_epoch)
    steps = stream.batches_per_epoch
    if steps is None:
        raise UsageError(
            "the data has no known number of batches per epoch",
            key="steps_per_epoch",
            remedy="pass steps_per_epoch=…",
        )
    if steps < 1:
        raise UsageError("contains no batch", key="train_ds", remedy="pass a dataset with samples")
    return steps
