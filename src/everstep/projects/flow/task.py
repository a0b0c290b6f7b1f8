"""`FlowTask`: what a user writes. Three steps, and hooks that the default `run` calls."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.projects.flow.own_run import record_steps, recorded
from everstep.projects.flow.settings import FlowSettings, Params
from everstep.task.optim import OptimizationConfig


@dataclasses.dataclass
class DataSet:
    """The data that `preprocessing_train` prepares for the default `run`: arrays, or datasets with their labels.

    Attributes:
      train_data: Inputs to train on; or a `tf.data.Dataset`, a generator function, a Stream with inputs and labels.
      train_label: Their labels; None where `train_data` has them.
      test_data: Inputs on which the trained model is evaluated, once.
      test_label: Their labels.
      validation_data: Inputs for the evaluation at each epoch's end; None: `validation_split` of the training data.
      validation_label: Their labels.
      class_names: The names of the classes, in the order of their numbers. Labels of text become numbers: without names
        here, in the order of the alphabet.
      test_ids: The names of the test samples, such as their files: the evaluation sample by sample has them.
    """

    train_data: Any
    train_label: Any = None
    test_data: Any = None
    test_label: Any = None
    validation_data: Any = None
    validation_label: Any = None
    class_names: Sequence[str] | None = None
    test_ids: Sequence[Any] | None = None


STEPS = (
    *("fetch_data", "preprocessing_train", "run"),
    *("build_model", "compile_model", "build_optimizer", "build_callbacks", "build_serving_model"),
)
"""The steps and hooks of a task."""


class FlowTask(abc.ABC):
    """An experiment in three steps: get the data, prepare it, train.

        class Mnist_A(FlowTask):
            def fetch_data(self):
                self.raw = self.catalog.load("mnist.raw")

            def preprocessing_train(self):
                self.dataset = DataSet(...)

            def build_model(self):
                return keras.Sequential([...])

        class Mnist_B(Mnist_A):
            '''The same with the values of the block Mnist_B in parameters.yaml, over those of Mnist_A.'''

    `everstep flow Mnist_B` creates one and runs it; in a notebook, `everstep.flow.create_task("Mnist_B")` creates one.
    Configuration and catalog can be used in `__init__`.

    Attributes:
      dataset: Set it in `preprocessing_train`, or return it: a `DataSet`, or anything with its attributes.
      model: The model, once it is built.
      history: The metrics of the epochs, under Keras's names: `{"loss": [0.3, 0.1], …}`.
      metrics: The results of the run: `test loss`, `test acc`.
      directory: The run directory, once the run has begun.
    """

    dataset: Any = None
    model: Any = None
    history: Mapping[str, Any] = {}
    metrics: Mapping[str, float] = {}
    directory: Path | None = None

    _everstep_context: Any = None
    _everstep_used_optimizer = False
    _everstep_called: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        record_steps(cls, FlowTask, STEPS)

    def __init__(self, params: Any = None) -> None:
        """Takes what a task's own `__init__` may pass on: nothing, or the blocks of `parameters.yaml`.

        Args:
          params: All blocks: `params.Mnist_A.epoch`. `self.params` is the block of the task that runs in any case.
        """
        super().__init__()

    # -- configuration and data ------------------------------------------------------------------------------------

    @property
    def settings(self) -> FlowSettings:
        """The resolved configuration.

        Raises:
          UsageError: The task was not created by `create_task`.
        """
        context = self._everstep_opened()
        return dataclasses.replace(context.settings, params=context.params, blocks=context.blocks)

    @property
    def params(self) -> Params:
        """This task's block of `parameters.yaml`, over those of its base classes."""
        return self._everstep_opened().params

    @params.setter
    def params(self, value: Any) -> None:
        """Accepts the block of this class or of a base class, which `self.params` is or inherits from already."""
        context, name = self._everstep_opened(), type(self).__name__
        if not any(value is context.blocks.get(each) for each in context.settings.chain):
            reason = f"is the block {name} of config/parameters.yaml already, over those of its base classes"
            remedy = f"remove the assignment; for the values of another task, inherit from it, or set them in {name}"
            raise UsageError(reason, key=f"{name}.params", received=value, remedy=remedy)

    @property
    def catalog(self) -> Any:
        """The data by name: `self.catalog.load("mnist.raw")`. What is loaded is fingerprinted with the run."""
        return self._everstep_opened().catalog

    @property
    def optimizer_config(self) -> OptimizationConfig:
        """The content of `optimizer.yaml`."""
        return self._everstep_opened().settings.optimizer

    def _everstep_opened(self) -> Any:
        if self._everstep_context is None:
            name = type(self).__name__
            remedy = f"create it with everstep.flow.create_task({name})"
            raise UsageError(f"{name}() has no configuration", remedy=remedy)
        return self._everstep_context

    # -- the steps ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def fetch_data(self) -> Any:
        """Loads the data from the catalog, and keeps it on `self`."""

    @abc.abstractmethod
    def preprocessing_train(self) -> Any:
        """Prepares the data; sets `self.dataset`, or returns it."""

    def run(self) -> Mapping[str, float]:
        """Fetches, prepares, builds, trains, evaluates, saves and logs; returns the final metrics.

        An interrupted run resumes. Override it for a different run: unless it calls a step itself, `fetch_data` and
        `preprocessing_train` are called before it. `log_metrics` and `log_file` then keep numbers and files with it.
        """
        with recorded(self, own=False):
            self._everstep_prepare()
            from everstep.projects.flow.training import train  # brings Keras

            return train(self)

    def _everstep_prepare(self) -> None:
        """Calls the first two steps."""
        self.fetch_data()
        prepared = self.preprocessing_train()
        self.dataset = self.dataset if prepared is None else prepared

    # -- hooks -------------------------------------------------------------------------------------------------------

    def build_model(self) -> Any:
        """Returns the Keras model; compiled only if `compile_model` does not fit."""
        raise UsageError(
            "has no build_model()", key="task", received=type(self).__name__, remedy="define it in the class"
        )

    def compile_model(self, model: Any) -> None:
        """Compiles a model that `build_model` left uncompiled, with the parameters `loss` and `metrics`."""
        from everstep.projects import plain_names, require_losses, require_metrics  # brings Keras

        name, loss, metrics = type(self).__name__, plain_names(self.params.loss), plain_names(self.params.metrics)
        metrics = [metrics] if isinstance(metrics, str) else metrics or []
        require_losses(loss, f"{name}.loss")
        require_metrics(metrics, f"{name}.metrics")
        model.compile(optimizer=self.build_optimizer(), loss=loss, metrics=metrics)

    def build_optimizer(self) -> Any:
        """Returns the optimizer that `optimizer.yaml` describes.

        Raises:
          UsageError: It cannot be built, or sets rates by layer, which a compiled model does not record.
        """
        self._everstep_used_optimizer = True
        if self.optimizer_config.layer_rates is not None:
            reason, remedy = "flows have one learning rate", "remove it, or train an experiment"
            raise UsageError(reason, key="optimizer.layer_rates", remedy=remedy)
        from everstep.task.optim import build  # brings Keras

        return build(self.optimizer_config, "optimizer")

    def build_callbacks(self) -> list[Any]:
        """Returns Keras callbacks for the training; none by default."""
        return []

    def build_serving_model(self, model: Any) -> Any:
        """Returns the model that is saved and used for predictions; by default the trained one.

        Prepend what `preprocessing_train` does to raw data as Keras layers, so that users of the file need not do it:
        `return keras.Sequential([keras.Input((28, 28)), keras.layers.Rescaling(1 / 255), *model.layers])`.
        """
        return model

    # -- for a custom run --------------------------------------------------------------------------------------------

    def log_metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Keeps numbers with the run, at once."""
        self._everstep_opened().log(values, step)

    def log_file(self, path: str | Path) -> None:
        """Keeps a file with the run: a copy in its directory, and on MLflow."""
        self._everstep_opened().keep(Path(path))


def chain_of(cls: type) -> list[type[FlowTask]]:
    """Returns a task's class and those it inherits from, `FlowTask` last, in Python's method resolution order."""
    return [base for base in cls.__mro__ if issubclass(base, FlowTask)]
