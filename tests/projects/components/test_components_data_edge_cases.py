"""Data that are unusual, or wrong in a way that shows late: weights of masks, datasets of unknown size, labels."""

import base64
import io
import itertools
import json

import keras
import numpy as np
import pytest
from PIL import Image
from small_project import build_small_components, preflight, run, trained_by_itself, write
from test_components_check import checked

from everstep.errors import UsageError
from everstep.projects.components.data_splits import create_split, padded
from everstep.projects.components.exported_model import ExportedModel
from everstep.projects.components.losses import with_axes
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


MASKS = """
    class Loader(Loader):
        def sample(self, row):
            x = np.random.default_rng(row).normal(size=(3, 4, 1))
            return x, (x[..., 0] > 0).astype(int)

    class Builder(Builder):
        def model(self):
            return keras.Sequential([keras.Input((3, 4, 1)), keras.layers.Conv2D(2, 1, activation="softmax")])
"""


@pytest.mark.backend
def test_the_weight_of_a_sample_is_that_of_every_pixel(tmp_path, quiet):
    """Batches are as large as masks are wide: taken for weights of columns, they would fit, too."""
    if keras.backend.backend() == "torch":
        pytest.skip("Keras learns no classes of pixels on PyTorch: fit, too, ends in 'grad_input must be contiguous'")
    folder = write(tmp_path, MASKS)
    results = run(tmp_path)
    x = np.stack([np.random.default_rng(row).normal(size=(3, 4, 1)) for row in range(10)]).astype(np.float32)
    y_pred = ExportedModel(folder / "exported" / "savedmodel").predict(x)
    right = np.where(x[..., 0] > 0, y_pred[..., 1], y_pred[..., 0])
    weighted = float((-np.log(right) * (1.0 + np.arange(10))[:, None, None]).mean())
    assert results["validation"]["model.evaluate"]["loss"] == pytest.approx(weighted, rel=1e-4)
    assert results["test"]["model.evaluate"]["loss"] == pytest.approx(float(-np.log(right).mean()), rel=1e-4)
    history = (folder / "history.csv").read_text()
    assert f"{weighted:.3f}" in history, "training has evaluated with the same weights"


@pytest.mark.backend
@pytest.mark.daily("jax")  # Keras has no gradient of this loss on PyTorch
def test_masks_with_weights_pass_the_checks(tmp_path):
    write(tmp_path, MASKS)
    found = checked(tmp_path, None, "weights", "labels", "step")
    assert found["weights"] == [
        "ok   preprocessor: weights are finite and not negative: training from 1 to 10, validation from 1 to 10"
    ]
    assert found["labels"][0].startswith("ok ")
    assert found["step"][0].startswith("ok ")


@pytest.mark.backend
@pytest.mark.parametrize(
    ("loss", "label", "output"),
    [
        ("sparse_categorical_crossentropy", (3, 4), (3, 4, 2)),
        ("sparse_categorical_crossentropy", (3, 4, 1), (3, 4, 2)),
        ("sparse_categorical_crossentropy", (4,), (4, 2)),
        ("categorical_crossentropy", (3, 4, 2), (3, 4, 2)),
        ("binary_crossentropy", (3, 4), (3, 4, 1)),
        ("binary_crossentropy", (3, 4, 1), (3, 4)),
        ("mse", (4,), (4,)),
        ("mse", (1,), (1,)),
        ("mse", (), (1,)),
        (lambda y, p: keras.ops.mean(keras.ops.abs(y - p), axis=(1, 2, 3)), (3, 4, 2), (3, 4, 2)),
    ],
)
def test_a_sample_of_weight_2_counts_twice(loss, label, output):
    """Whatever the shapes: as the losses of the samples alone, weighed. Batches are as large as labels are wide."""
    random = np.random.default_rng(0)
    model = keras.Sequential([keras.Input(output), keras.layers.Identity()])
    model.compile("sgd", loss)
    y = random.integers(0, 2, size=(4, *label)).astype("float32")
    y_pred = random.uniform(0.1, 0.9, size=(4, *output)).astype("float32")
    weight = np.array([1, 2, 3, 5], "float32")

    def computed(rows, weights):
        x, y_true, sample_weight = with_axes(model, (y_pred[rows], y[rows], weights))
        return float(model.compute_loss(x, y_true, y_pred[rows], sample_weight))

    alone = [computed(slice(row, row + 1), None) for row in range(4)]
    assert computed(slice(None), weight) == pytest.approx(np.mean(alone * weight), rel=1e-5)


def test_weights_of_several_outputs():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    y = {"class": np.zeros(5), "mask": np.zeros((5, 3, 4, 2))}
    model.compile("sgd", {"class": "mse", "mask": "mse"})
    weights = with_axes(model, (0, y, np.ones(5)))[2]
    assert {key: tuple(weights[key].shape) for key in y} == {"class": (5,), "mask": (5, 1, 1, 1)}
    model.compile("sgd", {"class": "mse", "mask": lambda y_true, y_pred: 0.0})
    for batch in ((0, y, np.ones(5)), (0, y["mask"], np.ones((5, 3))), (0, y), (0, y, None)):
        assert with_axes(model, batch) is batch, "as it was"


COLUMNS = """
    class Loader(Loader):
        n = 8

        def rows(self):
            return itertools.islice(super().rows(), 8)

        def create_validation_generator(self):
            return self.rows(), 8

    class Builder(Builder):
        def loss(self, y_true, y_pred):
            return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
"""


def test_an_own_loss_that_would_weigh_columns_is_found_by_the_check(tmp_path):
    """All batches are as large as masks are wide, so Keras would not mind."""
    write(tmp_path, MASKS + COLUMNS)
    (line,) = checked(tmp_path, None, "labels")["labels"]
    assert "odd.Builder: a batch of 3, as the last one of an epoch: the loss fails on labels" in line


RIGID = """
    class Builder(Builder):
        def loss(self, y_true, y_pred):
            return keras.ops.reshape(y_pred, (4, 2))[:, 0]
"""


def test_a_loss_that_takes_whole_batches_only_is_refused(tmp_path):
    with raises_problem(key="model_builder_class", reason="a batch of 2, as the last one .*the loss fails"):
        preflight(tmp_path, RIGID)
    assert "odd.Builder: a batch of 2, as the last" in checked(tmp_path, None, "labels")["labels"][0]


DATASET = """
    import tensorflow as tf

    class Loader(Loader):
        n = {n}

        def create_training_generator(self):
            rows = tuple(map(stacked, zip(*self.rows())))
            return tf.data.Dataset.from_tensor_slices(rows).filter(lambda *row: True){loaded}, self.n

    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            if not isinstance(generator, tf.data.Dataset):
                return super().batchify(generator, n)
            return generator{batched}, -(-n // 4)
"""


def dataset(n=10, loaded="", batched=".batch(4)"):
    return DATASET.format(n=n, loaded=loaded, batched=batched)


@pytest.mark.parametrize(
    ("n", "message"),
    [(8, "2 batches were .* but the dataset has more"), (16, "4 batches .*has 3"), (12, "12 samples .*has 10")],
)
def test_a_dataset_of_unknown_size_is_counted_while_it_is_read(tmp_path, n, message):
    stream = create_split(build_small_components(tmp_path, dataset(n)), "training").stream
    with raises_problem(key="data_loader_class", reason=f"odd.Loader: training data: {message}") as refused:
        list(itertools.islice(stream, 5))
    assert "config.yaml:" in refused.value.origin


def test_a_dataset_that_keeps_its_word_goes_on(tmp_path):
    made = build_small_components(tmp_path, dataset())
    stream = create_split(made, "training").stream
    assert [len(batch[1]) for batch in itertools.islice(stream, 7)] == [4, 4, 2, 4, 4, 2, 4]
    resumed = create_split(made, "training").stream
    resumed.restore({"epoch": 1, "batch": 2})
    assert [len(batch[1]) for batch in itertools.islice(resumed, 2)] == [2, 4]


def test_more_training_samples_than_announced_fail_the_check(tmp_path):
    write(tmp_path, dataset(8))
    (line,) = checked(tmp_path, None, "training samples")["training samples"]
    assert line.startswith("FAIL data_loader: ")
    assert "training data announced 8 samples, but has more" in line


@pytest.mark.parametrize(
    ("n", "loaded", "batched", "drifts"),
    [
        (10, "", ".repeat().batch(4)", True),
        (10, ".repeat()", ".batch(4).prefetch(1)", True),
        (8, ".take(8)", ".repeat().batch(4)", False),
        (10, "", ".batch(4).repeat().map(lambda *row: row)", False),
        (10, "", ".batch(4).repeat()", False),
    ],
)
def test_epochs_that_run_into_each_other_are_told(tmp_path, n, loaded, batched, drifts):
    flow = create_split(build_small_components(tmp_path, dataset(n, loaded, batched)), "training")
    assert ("batch before you repeat" in flow.warning) == drifts
    sizes = [len(batch[1]) for batch in itertools.islice(flow.stream, 2 * flow.n_iter)]
    assert (sum(sizes) == 2 * n) == (not drifts)


def test_the_check_and_the_trainer_tell_of_epochs_that_run_into_each_other(tmp_path, caplog):
    write(tmp_path, dataset(10, "", ".repeat().batch(4)"))
    (line,) = checked(tmp_path, None, "training batches")["training batches"]
    assert line.startswith("warn preprocessor: data_loader_class: odd.Loader: training data")
    trained_by_itself(tmp_path)
    assert "batch before you repeat" in caplog.text


COLLECTED = """
    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            samples = list(generator)
            return self.batches(iter(samples)), -(-n // 4)
"""


def test_a_generator_collected_in_a_list_is_refused(tmp_path):
    with raises_problem(
        key="preprocessor_class", reason="training data is read without end after its 10 samples"
    ) as refused:
        create_split(build_small_components(tmp_path, COLLECTED), "training")
    assert "config.yaml:" in refused.value.origin


LOST = """
    class Preprocessor(Preprocessor):
        def batches(self, generator):
            return itertools.islice(super().batches(generator), 2)
"""

LOST_ROWS = """
    import tensorflow as tf

    class Loader(Loader):
        def create_training_generator(self):
            return tf.data.Dataset.from_tensor_slices(tuple(map(stacked, zip(*self.rows())))), 10

    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            return generator.batch(4, drop_remainder=True), 3
"""


@pytest.mark.parametrize("more", [LOST, LOST_ROWS], ids=["generator", "dataset"])
def test_what_batchify_loses_is_not_the_loaders_fault(tmp_path, more):
    if more == LOST_ROWS:
        pytest.importorskip("tensorflow")
    with pytest.raises(UsageError) as refused:
        list(create_split(build_small_components(tmp_path, more), "training").batches())
    assert refused.value.key == "preprocessor_class"


UNBATCHED = """
    import tensorflow as tf

    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            return {}, n
"""

DATASET_OF_ROWS = "tf.data.Dataset.from_tensor_slices((np.ones((10, 4)), np.arange(10) % 2))"


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("generator", "single samples"),
        (DATASET_OF_ROWS, "single samples"),
        ("(list(itertools.islice(generator, 4)) for _ in range(3))", "a list of samples"),
    ],
)
def test_what_is_no_batch_is_called_that_with_what_batchify_returns(tmp_path, returned, reason):
    pytest.importorskip("tensorflow")
    with pytest.raises(UsageError) as refused:
        list(create_split(build_small_components(tmp_path, UNBATCHED.replace("{}", returned)), "training").batches())
    assert refused.value.key == "preprocessor_class"
    assert f"batchify returned {reason}" in refused.value.reason
    assert "dataset.batch(size)" in refused.value.remedy


NEGATIVE = """
    import tensorflow as tf

    class Loader(Loader):
        def create_training_generator(self):
            x, y, weights = map(stacked, zip(*self.rows()))
            return tf.data.Dataset.from_tensor_slices((x, y, 6 - weights)), 10

    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            return generator.batch(4), 3
"""


def test_weights_that_turn_negative_stop_a_dataset(tmp_path):
    pytest.importorskip("tensorflow")
    stream = create_split(build_small_components(tmp_path, NEGATIVE), "training").stream
    with raises_problem(key="data_loader_class", reason="a weight of training batch 1 is -1.0, but weights"):
        list(itertools.islice(stream, 3))


def test_a_batch_may_be_larger_than_the_data():
    assert len(list(itertools.islice(padded(iter("ab"), 2, "it", 9000), 9000))) == 9000
    read = padded(iter("ab"), 2, "it")
    with raises_problem(reason="it is read without end"):
        list(itertools.islice(read, 10_000))


LATE = """
    class Loader(Loader):
        def sample(self, row):
            return np.full(4, row / 10), row % 2 + 0.0 if row < 8 else 2.5

    class Builder(Builder):
        loss = "mse"

        def model(self):
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
"""


def test_labels_that_look_like_classes_at_first_are_found_by_the_check(tmp_path):
    write(tmp_path, LATE)
    (line,) = checked(tmp_path, None, "functions", "validation batches", "test batches")["functions"]
    assert "odd.Evaluator: validation batch 2" in line
    assert "pass kind='regression'" in line
    write(tmp_path, LATE + "\n    class Evaluator(Evaluator):\n        kind = 'regression'\n", run="b")
    (line,) = checked(tmp_path, None, "functions", "validation batches", "test batches", run="b")["functions"]
    assert line.startswith("ok "), line


FLOATS = """
    import tensorflow as tf

    class Loader(Loader):
        def create_training_generator(self):
            x, y, weights = np.ones((10, 4), "float32"), np.arange(10) % 2, np.ones(10, "float32")
            return tf.data.Dataset.from_tensor_slices((x, y, weights)), float(10)

    class Preprocessor(Preprocessor):
        def batchify(self, generator, n):
            return (generator.batch(4) if hasattr(generator, "batch") else self.batches(generator)), np.ceil(n / 4)
"""


def test_whole_numbers_as_floats_are_numbers_of_samples_and_batches(tmp_path):
    pytest.importorskip("tensorflow")
    write(tmp_path, FLOATS)
    found = checked(tmp_path, None, "training samples", "training batches")
    assert "create_training_generator() returned 10.0 samples: return an int" in found["training samples"][0]
    assert [found[name][0][:4] for name in ("training samples", "training batches")] == ["warn", "ok  "], found
    flow = create_split(build_small_components(tmp_path, FLOATS), "training")
    assert (flow.count, flow.n_iter) == (10, 3)


FLAT = """
    import tensorflow as tf

    class Loader(Loader):
        def sample(self, row):
            return np.full((9, 9 + row), 20 * row, np.uint8), row % 2

    class Preprocessor(Preprocessor):
        def add_image_preprocess(self, generator):
            return ((x[:, :9].reshape(-1) / 255, y, third) for x, y, third in generator)

    class Builder(Builder):
        def model(self):
            return keras.Sequential([keras.Input((81,)), keras.layers.Dense(2, activation="softmax")])
"""

FLAT_DATASET = """
    class Loader(Loader):
        def create_test_generator(self):
            x = np.repeat(np.arange(10, dtype=np.uint8) * 20, 81).reshape(10, 9, 9)
            return tf.data.Dataset.from_tensor_slices((x, np.arange(10) % 2, [f"id_{row}" for row in range(10)])), 10

    class Preprocessor(Preprocessor):
        def add_image_preprocess(self, generator):
            if not isinstance(generator, tf.data.Dataset):
                return super().add_image_preprocess(generator)
            return generator.map(lambda x, y, third: (tf.reshape(tf.cast(x, tf.float32), (-1,)) / 255, y, third))

        def batchify(self, generator, n):
            return (generator.batch(4), 3) if isinstance(generator, tf.data.Dataset) else super().batchify(generator, n)
"""


@pytest.mark.parametrize("more", ["", FLAT_DATASET], ids=["generator", "dataset"])
def test_a_flat_input_is_shown_as_the_picture_that_the_loader_gave(tmp_path, quiet, more):
    pytest.importorskip("tensorflow")
    folder = write(tmp_path, FLAT + more)
    run(tmp_path)
    for split in ("validation", "test"):
        samples = json.loads((folder / "reports" / f"{split}.json").read_text())["samples"]
        assert len(samples) == 10
        for sample in samples:
            image = Image.open(io.BytesIO(base64.b64decode(sample["input"]["image"].partition(",")[2])))
            assert image.getpixel((0, 0)) == 20 * sample["row"]
            assert image.height == 9
