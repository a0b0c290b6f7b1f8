"""`KerasTrainer`: trains the model of a project on the loop, and exports its best epoch."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.components.building import Components
from everstep.components.config_checks import require_epochs
from everstep.components.epoch_watcher import EpochWatcher
from everstep.components.exporting import export_best
from everstep.components.flows import Flow
from everstep.components.model_builder import ModelBuilderBase
from everstep.components.redirected import redirected
from everstep.components.run_folder import RunFolder
from everstep.components.sample_weights import WeightedTask
from everstep.components.tracking import NoTracking, Tracking
from everstep.components.training_config import experiment_config
from everstep.config import load_file
from everstep.data.mapped import MappedStream, class_weighted
from everstep.data.stream import Stream
from everstep.errors import TrainingError, UsageError, kind_of
from everstep.experiment import run_experiment
from everstep.loop.epochs import EpochController
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.learning_rate import LearningRate
from everstep.run.file_fingerprints import of_folder
from everstep.task.compiled import require_compiled
from everstep.task.description import Description, describe, leave
from everstep.types import Batch

logger = logging.getLogger(__name__)


class KerasTrainer:
    """Trains what a `ModelBuilderBase` builds: resumed by itself, tracked, several steps per compiled call.

    Args:
      components: The project's.
      folder: The run's folder.
      tracking: Where the numbers of epochs go.
      allow_change: Keys, such as `task.optimizer.learning_rate`, that a resumed run may change although they alter
        what it computes. The refusal names the keys.
      verbose: Whether to print progress.
    """

    def __init__(
        self,
        components: Components,
        folder: RunFolder,
        tracking: Tracking | None = None,
        allow_change: Sequence[str] = (),
        verbose: bool = True,
    ) -> None:
        self._components, self._folder, self._tracking = components, folder, tracking or NoTracking()
        self._allow_change, self._verbose = allow_change, verbose

    def train(self, train: Flow, validation: Flow) -> keras.callbacks.History:
        """Trains up to the configured epoch, from wherever the run is; returns the history of all epochs.

        Raises:
          UsageError: The request cannot be carried out, or would go on with a run that was trained otherwise.
          TrainingError: The run started and failed.
        """
        config = self._components.config
        epochs, steps = require_epochs(config), train.n_iter
        self._refuse_other_best()
        if train.doubt:
            logger.warning("%s", train.doubt)
        model = compiled_model(self._components)
        told, class_weight = describe(model), self._class_weight()
        params = experiment_config(config, told, class_weight, epochs, steps)
        task = WeightedTask(model, self._weighted(train.stream, class_weight), validation.stream, params.task)
        watcher = EpochWatcher(config, self._folder, self._tracking)
        callbacks = KerasCallbacks([*self._callbacks(), watcher], model, epochs, steps, True)
        with _told_of_nan(watcher, str(config.export.metric)), contextlib.ExitStack() as stack:
            stack.callback(leave, model, told)
            run_experiment(
                None,
                task,
                "train_and_eval",
                params,
                self._folder.training,
                controller_cls=functools.partial(
                    _controller, told, callbacks, watcher, epochs_origin=config.place("epochs")
                ),
                export=False,
                verbose=self._verbose,
                allow_change=self._allow_change,
                experiment=str(config.project_name),
                record={"data": _fingerprints(config.data_dir)},
                code_root=self._components.project.root,
            )
        self._folder.link()
        return callbacks.history

    def export(self, sample: Any) -> None:
        """Exports the best epoch to `exported/savedmodel`; `sample` is a batch of model inputs.

        Raises:
          TrainingError: No epoch can be the best, or what was exported does not answer as the model does.
        """
        export_best(self._components, self._folder, compiled_model(self._components), sample)

    def _refuse_other_best(self) -> None:
        """Refuses to change what the best epoch is: only the weights that were best so far are kept."""
        config = self._components.config
        now = {"metric": config.export.metric, "mode": config.export.mode}
        for key, before in self._best_so_far().items():
            if key in now and now[key] != before:
                raise UsageError(
                    f"export.{key}: received {now[key]!r}, but of the epochs trained so far only the best by "
                    f"{before!r} is kept: go on with that, or start a run with another name "
                    f"(from {config.place(f'export.{key}')})"
                )

    def _best_so_far(self) -> Mapping[str, Any]:
        """Returns `export` as the run was trained with it; nothing where it is not trained yet, or nobody knows."""
        if self._folder.step() is None:
            return {}
        try:
            stored: Any = load_file(self._folder.training / "config.yaml")
        except UsageError:
            return {}  # what there is to say of that is said by who opens the run
        for key in ("task", "project", "export"):
            stored = stored.get(key) if isinstance(stored, Mapping) else None
        return stored if isinstance(stored, Mapping) else {}

    def _weighted(self, stream: Stream, class_weight: Any) -> Stream:
        """Returns batches with the weights of their classes; labels that have none are the model builder's fault."""
        if not class_weight:
            return stream
        weigh = class_weighted(class_weight)

        def weighed(batch: Batch) -> Batch:
            with self._components.naming("model_builder"):
                return weigh(batch)

        return MappedStream(stream, weighed)

    def _class_weight(self) -> Any:
        with self._components.calling("model_builder", "get_class_weight"):
            return _builder(self._components).get_class_weight()

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        with self._components.calling("model_builder", "get_callbacks"):
            return redirected(_builder(self._components).get_callbacks(), self._folder)


TFKerasTrainer = KerasTrainer
"""The name that it had where TensorFlow was the only backend."""


def compiled_model(components: Components) -> keras.Model:
    """Returns a new model of the project's.

    Raises:
      UsageError: What the builder returns cannot be trained.
    """
    with components.calling("model_builder", "get_compiled_model"):
        model = _builder(components).get_compiled_model()
        if not isinstance(model, keras.Model):
            raise UsageError(
                f"{components.config.model_builder_class}.get_compiled_model() returned {kind_of(model)}, "
                f"expected a compiled keras.Model (from {components.config.place('model_builder_class')})"
            )
        require_compiled(model)
    return model


@contextlib.contextmanager
def _told_of_nan(watcher: EpochWatcher, metric: str) -> Iterator[None]:
    """Inside the block, a run that fails and has never seen a number says so first."""
    try:
        yield
    except TrainingError as error:
        if not watcher.saw_no_number:
            raise
        raise TrainingError(
            f"export.metric: {metric!r} was a finite number in no epoch, so nothing is exported: look at the loss, the "
            f"data and the learning rate ({error})"
        ) from error


def _fingerprints(data_dir: Any) -> dict[str, Any]:
    """Returns what is in the folder of the data, for the record: a loader's own code reads it."""
    return {} if data_dir is None else {"data_dir": of_folder(Path(str(data_dir)))}


def _builder(components: Components) -> ModelBuilderBase:
    builder = components.model_builder
    if not isinstance(builder, ModelBuilderBase):
        raise UsageError(f"KerasTrainer trains a ModelBuilderBase, received {type(builder).__name__}")
    return builder


def _controller(told: Description, callbacks: KerasCallbacks, watcher: EpochWatcher, **kwargs: Any) -> EpochController:
    controller = EpochController(callbacks=callbacks, keep=True, **kwargs)
    controller.saver.parts.append(LearningRate(controller.trainer, told.learning_rate))
    watcher.join(controller)
    return controller
