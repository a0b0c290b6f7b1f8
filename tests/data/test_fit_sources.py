"""`everstep.fit` on sources of other packages: stopped inside an epoch and resumed, it ends in the same bits."""

import signal

import numpy as np
import pytest

import everstep as es

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
BATCH, EPOCHS = 4, 3


class Samples:
    """A dataset by index with noisy samples."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index] + np.random.normal(size=3).astype("float32"), Y[index]


def py_dataset():
    class Batches(keras.utils.PyDataset):
        """Shuffles its own samples after each epoch."""

        rows = np.arange(len(X))

        def __len__(self):
            return len(X) // BATCH

        def __getitem__(self, index):
            rows = self.rows[index * BATCH : (index + 1) * BATCH]
            return X[rows], Y[rows]

        def on_epoch_end(self):
            self.rows = np.random.permutation(self.rows)

    return Batches(workers=2)


def grain_dataset():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(list(zip(X, Y, strict=True))).seed(1).shuffle()


class Stop(keras.callbacks.Callback):
    """Raises SIGINT after a batch."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def trained_weights(data, directory, stop_after=-1):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    stop = [Stop(stop_after)]  # -1 for a run that is not stopped
    batch = None if isinstance(data, keras.utils.PyDataset) else BATCH  # a PyDataset has its own
    es.fit(model, data, epochs=EPOCHS, batch_size=batch, callbacks=stop, model_dir=directory, verbose=False)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.backend
@pytest.mark.daily("torch")
@pytest.mark.parametrize(
    "make",
    [pytest.param(Samples, marks=pytest.mark.full), pytest.param(py_dataset, marks=pytest.mark.full), grain_dataset],
)
def test_resumed_inside_an_epoch_to_the_same_bits(make, tmp_path, no_export):
    straight = trained_weights(make(), tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        trained_weights(make(), tmp_path / "run", stop_after=8)
    resumed = trained_weights(make(), tmp_path / "run")
    assert np.array_equal(resumed, straight)
