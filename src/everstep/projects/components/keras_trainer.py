"""`KerasTrainer`: trains the model of a project on the loop, and exports its best epoch."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.config import load_file
from everstep.data import DataConfig, MappedStream, Stream, class_weighted
from everstep.errors import KeyNames, UsageError, kind_of, nearest
from everstep.frontends import CompiledTaskConfig, RunPlan, Verbose, compiled, train_compiled
from everstep.loop import Listener
from everstep.loop.actions import BestCheckpointExporter
from everstep.projects import Tracking
from everstep.projects.components.base_classes import ModelBuilderBase
from everstep.projects.components.building import BASES, Components
from everstep.projects.components.config import ConfigStruct, origin_of, require_epochs, training_values
from everstep.projects.components.data_splits import DataSplit
from everstep.projects.components.evaluation import evaluation_kind
from everstep.projects.components.export import export_best
from everstep.projects.components.losses import with_axes
from everstep.projects.components.run_folder import RunFolder
from everstep.run import folder_fingerprint
from everstep.task import CompiledTask, require_compiled
from everstep.types import Batch, Logs

logger = logging.getLogger(__name__)

PROJECT = "task.project"
"""The key of the project's configuration in that of the loop."""

_CLASS_KEYS = {f"task.{data}_data.{name}_class": f"{name}_class" for data in ("train", "validation") for name in BASES}
"""What the loop calls the keys of components whose data it reads."""

NAMES: KeyNames = {**compiled.NAMES, **_CLASS_KEYS, PROJECT: "", "runtime.seed": "seed", "model_dir": ""}
"""Keys of the loop, and those of the project's `config.yaml` that users know them by."""


class KerasTrainer:
    """Trains the model of a `ModelBuilderBase`: it resumes by itself, tracks, and runs several steps per call.

    Args:
      components: The project's components.
      folder: The run's folder.
      tracking: Where the metrics of epochs are logged.
      allow_change: Keys, such as `task.optimizer.learning_rate`, that a resumed run may change although they change
        what it computes. The error names the keys.
      verbose: 0 or False prints nothing, 1, True or "auto" progress, 2 a line per epoch.
    """

    def __init__(
        self,
        components: Components,
        folder: RunFolder,
        tracking: Tracking | None = None,
        allow_change: Sequence[str] = (),
        verbose: Verbose = True,
    ) -> None:
        self.__components, self.__folder, self.__tracking = components, folder, tracking or Tracking()
        self.__allow_change, self.__verbose = allow_change, verbose

    def train(self, train: DataSplit, validation: DataSplit) -> keras.callbacks.History:
        """Trains up to the configured epoch, from wherever the run is; returns the history of all epochs.

        Raises:
          UsageError: The request is invalid, or would resume a run that was trained differently.
          TrainingError: The run started and failed.
        """
        config = self.__components.config
        epochs = require_epochs(config)
        self.__refuse_other_best()
        if train.warning:
            logger.warning("%s", train.warning)
        model, builder = compiled_model(self.__components), _builder(self.__components)
        with self.__components.calling("model_builder", "get_class_weight"):
            class_weight = builder.get_class_weight()
        with self.__components.calling("model_builder", "get_callbacks"):
            callbacks = into_run_folder(builder.get_callbacks(), self.__folder)
        data = DataConfig(global_batch_size=config.get("batch_size", 32), drop_remainder=False)
        watcher = EpochWatcher(config, self.__folder, self.__tracking)
        plan = RunPlan(
            self.__folder.training,
            task=ComponentsConfig(
                train_data=data,
                validation_data=data,
                class_weight=None if class_weight is None else {int(k): float(v) for k, v in class_weight.items()},
                project=training_values(config),
            ),
            trainer={"max_to_keep": 2},
            seed=config.seed,
            verbose=self.__verbose,
            allow_change=[self.__loop_key(key) for key in self.__allow_change],
            names=NAMES,
            epochs_origin=origin_of(config, "epochs"),
            experiment=str(config.project_name),
            record=self.__record(config),
            code_root=self.__components.project.root,
            listeners=[watcher],
        )
        history = train_compiled(
            model,
            self.__weighted(train.stream, class_weight),
            validation.stream,
            epochs,
            steps_per_epoch=train.n_iter,
            callbacks=callbacks,
            task_cls=WeightedTask,
            run=plan,
        )
        self.__folder.link()
        return history

    def export(self, sample: Any) -> None:
        """Exports the best epoch to `exported/savedmodel`; `sample` is a batch of model inputs.

        Raises:
          TrainingError: No epoch can be the best, or the export predicts something else than the model.
        """
        export_best(self.__components, self.__folder, compiled_model(self.__components), sample)

    def __record(self, config: ConfigStruct) -> dict[str, Any]:
        """Returns what the run's record has beyond training: the data folder, and the names of the classes."""
        data = {} if config.data_dir is None else {"data_dir": folder_fingerprint(Path(config.data_dir))}
        _, classes, _ = evaluation_kind(self.__components)
        return {"data": data, **({"classes": list(map(str, classes))} if classes else {})}

    def __refuse_other_best(self) -> None:
        """Refuses to change which epoch is the best: only the weights that were best so far are kept."""
        if self.__folder.step() is None:
            return
        try:
            stored: Any = load_file(self.__folder.training / "config.yaml")
        except UsageError:
            return  # the error is raised when the run is opened
        for key in (*PROJECT.split("."), "export"):
            stored = stored.get(key) if isinstance(stored, Mapping) else None
        config = self.__components.config
        for key, before in stored.items() if isinstance(stored, Mapping) else ():
            if key in ("metric", "mode") and config.export[key] != before:
                raise UsageError(
                    f"only the best epoch by {before!r} was kept so far",
                    key=f"export.{key}",
                    received=config.export[key],
                    remedy="resume with that, or start a run with another name",
                    origin=origin_of(config, f"export.{key}"),
                )

    def __loop_key(self, key: str) -> str:
        """Returns a key of the project's configuration as the loop knows it; the loop's own keys are unchanged."""
        return f"{PROJECT}.{key}" if key.partition(".")[0] in training_values(self.__components.config) else key

    def __weighted(self, stream: Stream, class_weight: Mapping[int, float] | None) -> Stream:
        """Returns batches with class weights; labels without a class are an error of the model builder."""
        if not class_weight:
            return stream
        weight = class_weighted(class_weight)

        def weighted(batch: Batch) -> Batch:
            with self.__components.naming("model_builder"):
                return weight(batch)

        return MappedStream(stream, weighted)


TFKerasTrainer = KerasTrainer
"""The name that it had where TensorFlow was the only backend."""


def compiled_model(components: Components) -> keras.Model:
    """Returns a new model of the project's.

    Raises:
      UsageError: The builder returns something that cannot be trained.
    """
    builder = _builder(components)
    with components.calling("model_builder", "get_compiled_model"):
        model = builder.get_compiled_model()
        if not isinstance(model, keras.Model):
            raise UsageError(
                f"must return a compiled keras.Model, but returned {kind_of(model)}", key="get_compiled_model()"
            )
        require_compiled(model)
    return model


def _builder(components: Components) -> ModelBuilderBase:
    builder = components.model_builder
    if not isinstance(builder, ModelBuilderBase):
        raise UsageError("KerasTrainer trains a ModelBuilderBase", key="model_builder", received=type(builder).__name__)
    return builder


def into_run_folder(callbacks: Sequence[Any] | None, folder: RunFolder) -> list[keras.callbacks.Callback]:
    """Returns callbacks with their files in the run's folder: ModelCheckpoint in `model_checkpoints/`, TensorBoard in
    `logs/`.

    The run itself saves everything that it resumes from in `training/checkpoints`.

    Raises:
      UsageError: One is no Keras callback.
    """
    listed = keras.tree.flatten(list(callbacks or ()))
    for callback in listed:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError("must return Keras callbacks", key="get_callbacks()", received=callback)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            target = folder.path / "model_checkpoints"
            target.mkdir(exist_ok=True)
            callback.filepath = str(target / Path(str(callback.filepath)).name)
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = str(folder.path / "logs" / "callback")
    return listed


class WeightedTask(CompiledTask):
    """A compiled model whose sample weights fit labels of any shape; see `with_axes`."""

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Learns from one batch."""
        return super().train_step(with_axes(model, inputs), model, optimizer, metrics)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch."""
        return super().validation_step(with_axes(model, inputs), model, metrics)


class EpochWatcher(Listener):
    """Tracks the metrics of every epoch, and keeps the best weights so far.

    Args:
      config: Its `export` section decides which epoch is the best.
      folder: The run's folder.
      tracking: Where the metrics are logged.
    """

    def __init__(self, config: ConfigStruct, folder: RunFolder, tracking: Tracking) -> None:
        self._config, self._folder, self._tracking = config, folder, tracking
        comp = "lower" if config.export.mode == "min" else "higher"
        self._best = BestCheckpointExporter(folder.best, config.export.metric, comp)

    def setup(self, controller: Any) -> None:
        """Refuses an export metric that no epoch will have.

        Raises:
          UsageError: There is no such metric; lists those there are.
        """
        super().setup(controller)
        self._best.set_controller(controller)
        trainer = controller.trainer
        if all(
            trainer.task.log_reduction(kind) == "mean" for kind in ("train", "validation")
        ):  # no steps of the model's own
            train, validation = (list(trainer.engine.read(kind)) for kind in ("train", "validation"))
            self._require_metric([*train, *(f"val_{name}" for name in validation)])

    def on_ready(self) -> None:
        """Links the run's files, and starts tracking."""
        self._folder.link()
        self._tracking.start()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Keeps the weights if they are the best, and tracks the metrics."""
        numbers = {name: float(value) for name, value in logs.items()}
        trainer = self.controller.trainer
        self._require_metric(numbers)
        self._folder.link()
        self._best.maybe_export_checkpoint(trainer, {**numbers, "epoch": epoch}, trainer.global_step)
        self._tracking.log(epoch, numbers)

    def on_exit(self, error: BaseException | None) -> None:
        """Links what was written since, such as the history of a first epoch that has diverged."""
        self._folder.link()

    def get_state(self) -> dict[str, Any]:
        """Returns what a resumed run has to know: the best value so far."""
        return self._best.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._best.set_state(state)

    def _require_metric(self, known: Iterable[str]) -> None:
        names, metric = list(known), self._config.export.metric
        if metric not in names:
            raise UsageError(
                f"no epoch has this metric (metrics: {', '.join(names)})",
                key="export.metric",
                received=metric,
                remedy=nearest(metric, names),
                origin=origin_of(self._config, "export.metric"),
            )


@dataclasses.dataclass
class ComponentsConfig(CompiledTaskConfig):
    """The compiled model, and the project's configuration as far as it may change a step."""

    project: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The project's configuration, without keys that change nothing in a step."""
