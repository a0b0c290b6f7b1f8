"""The classes that a project derives its own from: data loader, augmentor, preprocessor, model builder, evaluator.

No Keras is needed to import them.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.evaluation import OutcomeKind


class BaseClass(abc.ABC):
    """A component: its parameters are set in two methods, and nowhere else.

        class Preprocessor(PreprocessorBase):
            def _set_defaults(self):
                self.batch_size = 8

            def _load_params(self, config):
                self.batch_size = config.batch_size

    `Preprocessor(None)` has the defaults, for exploring in a notebook.

    Args:
      config: A `ConfigStruct`, or None for the defaults.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self._set_defaults()
        if config is not None:
            self._load_params(config)

    @abc.abstractmethod
    def _set_defaults(self) -> None:
        """Sets every parameter of the class to its default."""

    @abc.abstractmethod
    def _load_params(self, config: Any) -> None:
        """Sets the same parameters to the values of the configuration."""


class DataLoaderBase(BaseClass):
    """Provides the samples of the three splits, one by one.

    Each method returns samples and their number. Samples are a `tf.data.Dataset` or a Python generator, which may be
    endless. A generator is created again for every epoch, with the random generators of Python and NumPy seeded by run
    and epoch, so that a resumed run sees the samples that it would have seen.

    Args:
      config: A `ConfigStruct`, or None for the defaults.
      data_dir: The folder of the data; None for the one in the configuration.

    Attributes:
      data_dir: The folder as a `Path`, None if none is given. It is set before `_set_defaults` is called.
    """

    def __init__(self, config: Any = None, data_dir: Any = None) -> None:
        given = data_dir if data_dir is not None else getattr(config, "data_dir", None)
        self.data_dir = Path(given) if given is not None else None
        super().__init__(config)

    @abc.abstractmethod
    def create_training_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, sample_weight)` and how many an epoch has."""

    @abc.abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, sample_weight)`, always in the same order, and their number."""

    @abc.abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, data_id)`, always in the same order, and their number."""

    def get_validation_index(self) -> Sequence[Any] | None:
        """Returns the ids of the validation samples in their order; None numbers them from 0."""
        return None


class AugmentorBase(BaseClass):
    """Augments samples where `do_train_augmentation` or `do_validation_augmentation` is true; never test data."""

    @abc.abstractmethod
    def add_augmentation(self, generator: Any) -> Any:
        """Returns augmented samples `(x, y, sample_weight)`; a dataset stays a dataset, a generator a generator."""

    def add_validation_augmentation(self, generator: Any) -> Any:
        """Returns augmented validation samples; by default they are augmented like training samples."""
        return self.add_augmentation(generator)


class PreprocessorBase(BaseClass):
    """Preprocesses images, labels and weights, then builds batches.

    The orchestrator calls `add_preprocess`: image, label, weight, batches. A pipeline that does not fit overrides it.
    Test samples have an id in place of a weight, so they skip the weight's part.
    """

    @abc.abstractmethod
    def image_preprocess(self, image: Any) -> Any:
        """Returns one image as the model takes it."""

    @abc.abstractmethod
    def label_preprocess(self, label: Any) -> Any:
        """Returns one label as the loss takes it."""

    def weight_preprocess(self, weight: Any) -> Any:
        """Returns one sample weight; by default unchanged."""
        return weight

    @abc.abstractmethod
    def add_image_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `image_preprocess` applied to their images."""

    @abc.abstractmethod
    def add_label_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `label_preprocess` applied to their labels."""

    def add_weight_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `weight_preprocess`, if the class defines it, applied to their weights."""
        if type(self).weight_preprocess is PreprocessorBase.weight_preprocess:
            return generator
        if hasattr(generator, "element_spec"):  # a tf.data.Dataset
            return generator.map(lambda x, y, weight: (x, y, self.weight_preprocess(weight)))
        return ((x, y, self.weight_preprocess(weight)) for x, y, weight in generator)

    @abc.abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns batches, and how many an epoch has: samples divided by the batch size, rounded up."""

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns preprocessed batches of samples `(x, y, sample_weight)`, and how many an epoch has."""
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)

    def add_test_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns preprocessed batches of samples `(x, y, data_id)`; uses an overridden `add_preprocess`."""
        if type(self).add_preprocess is not PreprocessorBase.add_preprocess:
            return self.add_preprocess(generator, n_data_points)
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        return self.batchify(generator, n_data_points)


class ModelBuilderBase(BaseClass):
    """Builds the Keras model, its callbacks and its class weights."""

    @abc.abstractmethod
    def get_compiled_model(self) -> Any:
        """Returns a new, compiled Keras model; called whenever one is needed."""

    def get_callbacks(self) -> Sequence[Any]:
        """Returns Keras callbacks to train with. ModelCheckpoint and TensorBoard write into the run's folder."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """Returns the weight of each class in the loss, or None."""
        return None

    def load(self, path: Any) -> Any:
        """Returns an exported model, whose `predict(x)` takes a batch."""
        from everstep.projects.components.exported_model import load_exported  # needs Keras

        return load_exported(path)


class GenericModelBuilderBase(BaseClass):
    """Fits an estimator with the interface of scikit-learn."""

    @abc.abstractmethod
    def fit(
        self, train_data_gen: Iterator[Any], n_iter_train: int, val_data_gen: Iterator[Any], n_iter_val: int
    ) -> Any:
        """Returns a fitted estimator with `predict(x)` and, optionally, `score(x, y)`.

        Args:
          train_data_gen: Training batches `(x, y, sample_weight)`, epoch after epoch without end.
          n_iter_train: How many batches an epoch has.
          val_data_gen: Validation batches, likewise without end.
          n_iter_val: How many validation batches one pass has.
        """


class EvaluatorBase(BaseClass):
    """Names the functions that score one prediction each.

        class Evaluator(EvaluatorBase):
            def get_eval_funcs(self):
                return {"absolute error": lambda y_true, y_pred: abs(y_true - y_pred)}

    A function gets one data point, without a batch axis. One decorated with `everstep.evaluation.vectorized` gets a
    batch, and is many times faster. `everstep.evaluation` has ready-made ones.
    """

    def _set_defaults(self) -> None:
        """Sets nothing; override it for parameters of your own."""

    def _load_params(self, config: Any) -> None:
        """Sets nothing; override it for parameters of your own."""

    kind: OutcomeKind | None = None
    """The kind of problem, where the first batch is misleading: "regression" for labels that begin with 0 and 1."""

    from_logits: bool | None = None
    """Whether predictions over classes are logits; None infers it from the first batch."""

    @abc.abstractmethod
    def get_eval_funcs(self) -> Mapping[str, Any] | Sequence[Any] | None:
        """Returns functions `f(y_true, y_pred)` by name, or a list of metrics; None for the model's metrics only."""

    def get_class_names(self) -> Sequence[str] | None:
        """Returns the names of the classes in order, for the report, or None."""
        return None

    def get_columns(self, x: Any, y: Any, data_id: str) -> dict[str, Any]:
        """Returns further facts about one data point by name, numbers or texts, by which the report is sliced.

            def get_columns(self, x, y, data_id):
                return {"camera": data_id.split("_")[0], "brightness": float(x.mean())}

        Every data point has the same names. They are columns of `reports/<split>.parquet`, not of the CSV.

        Args:
          x: The input as the model gets it, without a batch axis.
          y: The label.
          data_id: The id of its row.
        """
        return {}

    def show(self, x: Any) -> Any:
        """Returns what the report shows of one input: an image `(h, w)` or `(h, w, channels)`, text, or numbers."""
        return x
