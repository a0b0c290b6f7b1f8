"""Kinds of data."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from tools.fit_cases import rows
from tools.fit_cases.case import (
    CLASSES,
    LABELS,
    SAMPLES,
    Call,
    X,
    Y,
    call,
    call_of_batches,
    case,
    cases,
    classifier,
    compiled,
    numbers,
    regression,
    stack,
)

SIZE = 8
WEIGHTS = np.linspace(0.1, 2.0, SAMPLES).astype("float32")


TF, TORCH = ("tensorflow",), ("torch",)


# -- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(x: Callable[[], Any], y: Callable[[], Any] = lambda: Y, **kwargs: Any) -> Callable[[], Call]:
    return lambda: call(regression(metrics=["mae"]), x(), y(), **kwargs)


def _frame() -> Any:
    import pandas

    return pandas.DataFrame(X, columns=list("abcd"))


def _mixed_frame() -> Any:
    import pandas

    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1].astype("float64"), "c": LABELS, "d": LABELS > 0})


def _series() -> Any:
    import pandas

    return pandas.Series(Y[:, 0])


cases(
    "data",
    {
        "arrays in float64": _arrays(lambda: X.astype("float64"), lambda: Y.astype("float64")),
        "arrays in float16": _arrays(lambda: X.astype("float16")),
        "arrays of whole numbers": _arrays(lambda: (X * 10).astype("int64"), lambda: LABELS),
        "arrays of bools": _arrays(lambda: X > 0, lambda: Y > 0),
        "arrays in another order in memory": _arrays(lambda: np.asfortranarray(X)),
        "labels of one dimension": _arrays(lambda: X, lambda: Y[:, 0]),
        "Python lists": _arrays(lambda: X.tolist(), lambda: Y.tolist()),
        "tensors of the backend": _arrays(
            lambda: keras.ops.convert_to_tensor(X), lambda: keras.ops.convert_to_tensor(Y)
        ),
        "pandas": _arrays(_frame, _series),
        "pandas, columns of several types": _arrays(_mixed_frame),
        "pandas, validation_split": _arrays(_frame, _series, validation_split=0.25),
    },
)


@case("data", "images of bytes")
def images_of_bytes():
    images = np.random.default_rng(0).integers(0, 256, (SAMPLES, 6, 6, 3), "uint8")
    hidden = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(3, 3), keras.layers.Flatten()]
    model = stack((6, 6, 3), *hidden, keras.layers.Dense(CLASSES, "softmax"))
    return call(compiled(model, loss="sparse_categorical_crossentropy"), images, LABELS)


@case("data", "inputs of one dimension")
def one_dimension():
    return call(compiled(stack((1,), keras.layers.Dense(1))), X[:, 0], Y)


@case("data", "a scipy matrix")
def scipy_matrix():
    import scipy.sparse

    return call(regression(), scipy.sparse.csr_matrix(X * (X > 0)), Y)


@case("data", "texts through a TextVectorization", backends=TF)
def texts():
    import tensorflow as tf

    words = tf.constant([f"word{a} word{b}" for a, b in zip(LABELS, LABELS[::-1], strict=True)])
    vectorize = keras.layers.TextVectorization(output_sequence_length=2)
    vectorize.adapt(words)
    hidden = [vectorize, keras.layers.Embedding(8, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return call(compiled(stack((), *hidden, dtype="string"), "sgd"), words, Y)


# -- batches of Python -------------------------------------------------------------------------------------------------


def _batches(size: int = SIZE) -> Iterator[tuple[Any, Any]]:
    for begin in range(0, SAMPLES, size):
        yield X[begin : begin + size], Y[begin : begin + size]


def _weighted() -> Iterator[tuple[Any, Any, Any]]:
    for begin in range(0, SAMPLES, SIZE):
        yield X[begin : begin + SIZE], Y[begin : begin + SIZE], WEIGHTS[begin : begin + SIZE]


def _tf_data() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y))


def _endless() -> Iterator[tuple[Any, Any]]:
    while True:
        yield from _batches()


def _of(data: Callable[[], Any], **kwargs: Any) -> Callable[[], Call]:
    return lambda: call_of_batches(regression(metrics=["mae"]), data(), **kwargs)


cases(
    "data",
    {
        "a generator over several epochs": _of(_batches, epochs=2, steps_per_epoch=2),
        "an endless generator": _of(_endless, epochs=3, steps_per_epoch=4),
        "a generator to validate, one epoch": lambda: call(regression(), X, Y, validation_data=_batches(), epochs=1),
    },
)
cases(
    "data",
    {
        "a generator, one epoch": _of(_batches, epochs=1),
        "a generator with weights": _of(_weighted, epochs=1),
        "tf.data of unknown length": _of(lambda: _tf_data().filter(lambda x, y: True).batch(SIZE)),
        "a DataLoader of unknown length": _of(lambda: _torch_iterable()),
    },
    differs={"tensorflow": rows.UNKNOWN_LENGTH},
)
cases("data", {"a generator that ends early": _of(_batches, epochs=3, steps_per_epoch=7)}, differs=rows.GENERATOR_ENDS)
cases(
    "data",
    {"a generator that ends in the second epoch": _of(_batches, epochs=3, steps_per_epoch=3)},
    differs=rows.GENERATOR_ENDS,
)
cases(
    "data",
    {"a generator to validate, several epochs": lambda: call(regression(), X, Y, validation_data=_batches())},
    differs=rows.GENERATOR_TWICE,
)


cases(
    "data",
    {
        "an endless generator to validate": lambda: call(
            regression(), X, Y, validation_data=_endless(), validation_steps=2, epochs=3
        )
    },
    differs=rows.GENERATOR_READS_ON,
)


class Batches(keras.utils.PyDataset):
    """Batches by index."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.x, self.y, self.epochs = X, Y, 0

    def __len__(self) -> int:
        """Returns how many there are."""
        return SAMPLES // SIZE

    def __getitem__(self, index: int) -> Any:
        """Returns one."""
        rows = slice(index * SIZE, (index + 1) * SIZE)
        return self.x[rows], self.y[rows]


class Endless(Batches):
    """Has no last batch."""

    num_batches = None

    def __getitem__(self, index: int) -> Any:
        """Returns one."""
        return super().__getitem__(index % 5)


class Turning(Batches):
    """Is in another order after each epoch."""

    def on_epoch_end(self) -> None:
        """Reverses the samples."""
        self.x, self.y = self.x[::-1], self.y[::-1]


class Begins(Batches):
    """Changes as an epoch begins, by itself alone."""

    def on_epoch_begin(self) -> None:
        """Counts."""
        self.epochs += 1

    def __getitem__(self, index: int) -> Any:
        """Returns a batch that depends on the epoch."""
        x, y = super().__getitem__(index)
        return x * self.epochs, y


class Augmented(Batches):
    """Draws from NumPy's global generator."""

    def __getitem__(self, index: int) -> Any:
        """Returns a batch with noise."""
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape).astype("float32"), y


cases(
    "data",
    {
        "a PyDataset": _of(Batches),
        "a PyDataset without end": _of(Endless, steps_per_epoch=3, epochs=3),
        "a PyDataset and steps_per_epoch": _of(Batches, steps_per_epoch=2, epochs=4),
        "a PyDataset to validate": lambda: call(regression(), X, Y, validation_data=Batches()),
        "a PyDataset with class weights": lambda: call_of_batches(
            classifier(), ClassBatches(), class_weight={0: 2.0, 1: 0.5, 2: 1.0}
        ),
    },
)
cases("data", {"a PyDataset with on_epoch_begin": _of(Begins)}, differs={"jax": rows.HOOKS, "torch": rows.HOOKS})
cases("data", {"a PyDataset with on_epoch_end": _of(Turning)}, differs=rows.HOOKS)
cases(
    "data",
    {
        "a PyDataset with threads": _of(lambda: Batches(workers=2)),
        "a PyDataset with processes": _of(lambda: Batches(workers=2, use_multiprocessing=True)),
    },
    differs={"jax": rows.WORKERS, "torch": rows.WORKERS},
)
cases("data", {"a PyDataset that draws from np.random": _of(Augmented)}, differs=rows.NUMPY_RANDOM)
cases("data", {"a PyDataset, shuffle=True": _of(Batches, shuffle=True)}, differs=rows.ORDER)


class ClassBatches(Batches):
    """Has classes for labels."""

    def __getitem__(self, index: int) -> Any:
        """Returns a batch."""
        return super().__getitem__(index)[0], LABELS[index * SIZE : (index + 1) * SIZE]


# -- tf.data, PyTorch, Grain -------------------------------------------------------------------------------------------


def _tf_classes() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(SIZE)


def _tf_dicts() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(({"a": X, "b": numbers(SAMPLES, 3)}, Y)).batch(SIZE)


def _model_of_dicts() -> keras.Model:
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((3,), name="b")}
    return compiled(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values())))))


cases(
    "data",
    {
        "tf.data": _of(lambda: _tf_data().batch(SIZE)),
        "tf.data, a short last batch": _of(lambda: _tf_data().batch(9)),
        "tf.data that repeats": _of(lambda: _tf_data().batch(SIZE).repeat(), steps_per_epoch=3, epochs=3),
        "tf.data and steps_per_epoch": _of(lambda: _tf_data().batch(SIZE), steps_per_epoch=2, epochs=4),
        "tf.data, cached and prefetched": _of(lambda: _tf_data().cache().batch(SIZE).prefetch(2)),
        "tf.data, mapped": _of(lambda: _tf_data().map(lambda x, y: (x * 2.0, y)).batch(SIZE)),
        "tf.data of dicts": lambda: call_of_batches(_model_of_dicts(), _tf_dicts()),
        "tf.data to validate": lambda: call(regression(), X, Y, validation_data=_tf_data().batch(SIZE)),
        "tf.data, shuffled once": _of(
            lambda: _tf_data().shuffle(SAMPLES, seed=3, reshuffle_each_iteration=False).batch(SIZE)
        ),
        "tf.data with class weights": lambda: call_of_batches(
            classifier(), _tf_classes(), class_weight={0: 2.0, 1: 0.5, 2: 1.0}
        ),
    },
)
cases(
    "data",
    {"tf.data, shuffled anew": _of(lambda: _tf_data().shuffle(SAMPLES, seed=3).batch(SIZE))},
    differs=rows.PASSES,
)


def _torch_loader(**kwargs: Any) -> Any:
    import torch

    samples = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(samples, batch_size=SIZE, **kwargs)


def _torch_iterable() -> Any:
    import torch

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(zip(X, Y, strict=True))

    return torch.utils.data.DataLoader(Samples(), batch_size=SIZE)


def _torch_shuffled() -> Any:
    import torch

    return _torch_loader(shuffle=True, generator=torch.Generator().manual_seed(3))


cases(
    "data",
    {
        "a DataLoader": _of(_torch_loader),
        "a DataLoader to validate": lambda: call(regression(), X, Y, validation_data=_torch_loader()),
    },
)
cases("data", {"a DataLoader with a worker process": _of(lambda: _torch_loader(num_workers=1))}, backends=TORCH)
cases("data", {"a DataLoader that shuffles": _of(_torch_shuffled)}, differs=rows.LOADER)


def _grain() -> Any:
    import grain

    return grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(SIZE)


cases(
    "data",
    {"Grain": _of(lambda: _grain().to_iter_dataset()), "Grain by index": _of(_grain)},
    differs={"tensorflow": rows.UNKNOWN_LENGTH},
)


@case("data", "ragged tensors", backends=TF)
def ragged():
    import tensorflow as tf

    lists = [list(range(1, 2 + label)) for label in LABELS]
    model = stack((None,), keras.layers.Embedding(8, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1))
    data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(lists, dtype="int32"), Y)).batch(SIZE)
    return call_of_batches(compiled(model, "sgd"), data.map(lambda x, y: (x.to_tensor(shape=(None, 4)), y)))


@case("data", "tf.sparse", backends=TF)
def tf_sparse():
    import tensorflow as tf

    return call(regression(), tf.sparse.from_dense(X * (X > 0)), Y)
