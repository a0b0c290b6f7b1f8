"""Jobs and records as they occur in practice: steps with nested logs, late validation, data written twice."""

import math
from pathlib import Path

import keras
import numpy as np
import pytest
from test_training_job import X, Y, training_job

import everstep as es
from everstep.data.tfrecord import TfExampleBuilder, inspect, write_arrays, write_images, write_tfrecords
from everstep.data.tfrecord.dataset import _content, _identity, get_train_ds
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

ON_TENSORFLOW = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a step with a GradientTape")


class Guided(keras.Model):
    """With the step of Keras's guide: the result of the compiled metrics is a dictionary in a dictionary."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (y, self(x))))
        return {metric.name: metric.result() for metric in self.metrics}


@pytest.mark.backend
@ON_TENSORFLOW
def test_a_step_whose_logs_are_nested(tmp_path):
    history = training_job(tmp_path / "job", custom_model_class=Guided).run_train((X, Y), None, 1)
    assert set(history.history) == {"loss", "accuracy"}


@pytest.mark.backend
def test_validation_that_comes_late_stands_at_its_epochs(tmp_path):
    training_job(tmp_path / "job").run_train((X, Y), None, 2)
    history = training_job(tmp_path / "job").run_train((X, Y), (X, Y), 4).history
    assert [math.isnan(value) for value in history["val_loss"]] == [True, True, False, False]
    assert len(history["loss"]) == 4


@pytest.mark.backend
def test_other_steps_per_epoch_are_refused(tmp_path):
    training_job(tmp_path / "job").run_train((X, Y), None, 1, steps_per_epoch=2)
    with raises_problem(key="steps_per_epoch", reason="2 -> 1"):
        training_job(tmp_path / "job").run_train((X, Y), None, 2, steps_per_epoch=1)


class Once(es.Stream):
    """The rows in their order, made for one epoch."""

    def __init__(self):
        super().__init__(repeat=False, batches_per_epoch=len(X) // 4)

    def open(self, epoch, batch):
        return ((X[at : at + 4], Y[at : at + 4]) for at in range(4 * batch, len(X) - 3, 4))


@pytest.mark.backend
def test_a_stream_of_one_epoch_is_read_in_each_epoch(tmp_path):
    history = training_job(tmp_path / "job").run_train(Once(), Once(), 3)
    assert len(history.history["loss"]) == len(history.history["val_loss"]) == 3


def test_records_are_not_written_beside_others(tmp_path):
    write_arrays(tmp_path, "train", {"x": np.arange(20)}, shards=4)
    with raises_problem(key="folder", reason="3 more train files exist"):
        write_arrays(tmp_path, "train", {"x": np.arange(20)})
    assert len(list(tmp_path.glob("*.tfrec"))) == 4


@pytest.mark.parametrize("label", ["", " a", "a\nb"])
def test_labels_that_are_no_line_of_a_file(tmp_path, label):
    with pytest.raises(UsageError) as refused:
        write_arrays(tmp_path, "train", {"x": np.arange(2), "label": np.array(["b", label])})
    assert (refused.value.key, refused.value.received) == ("label", label)


def test_a_column_of_a_table_has_one_type(tmp_path):
    import tensorflow as tf

    (tmp_path / "a.png").write_bytes(tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy())
    lines = ["file,label,far,badge,age", "a.png,x,1,007,3", "a.png,y,1.5,008,4"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    write_images(tmp_path / "data", "train", tmp_path, tmp_path / "labels.csv")
    kinds = {name: feature.kind for name, feature in inspect([str(tmp_path / "data")]).features.items()}
    assert (kinds["far"], kinds["badge"], kinds["age"]) == ("float", "bytes", "int64")
    (tmp_path / "labels.csv").write_text("file,label,image\na.png,x,1")
    with raises_problem(key="table", reason="has a column 'image'"):
        write_images(tmp_path / "more", "train", tmp_path, tmp_path / "labels.csv")


def test_classes_in_files_of_their_own_are_mixed(tmp_path):
    """Twenty files with a class each: any stretch of a pass has all of them."""
    import tensorflow as tf

    files = write_arrays(tmp_path, "train", {"class": np.tile(np.arange(20), 100)}, 20, shuffle=False).files
    assert {shown["class"] for shown in inspect(files[:1], examples=100).examples} == {"0"}
    feature = {"class": tf.io.FixedLenFeature([], tf.int64)}
    stream = get_train_ds(tmp_path, lambda example: tf.io.parse_single_example(example, feature)["class"], 100, 100)
    batches = [np.asarray(batch) for batch in stream]
    assert sum(len(batch) for batch in batches) == 2000
    for start in (0, 5, 10, 15):
        assert len(np.unique(np.concatenate(batches[start : start + 5]))) == 20


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_written_anew_are_other_data(tmp_path, compression):
    """Whatever their size: a record in the middle with another value, or two that changed places."""
    import tensorflow as tf

    identities = []
    for values in ([1.0, 2, 3, 4, 5], [1.0, 2, 7, 4, 5], [1.0, 2, 4, 3, 5], [1.0, 2, 3, 4, 5]):
        rows = [TfExampleBuilder().add_floats_feature("x", value) for value in values]
        (file,) = write_tfrecords(tmp_path / "train-0.tfrec", rows, compression)
        identities.append(_identity([file], [_content(tf, file, compression)])["train-0"])
    assert len(set(identities)) == 3
    assert identities[0] == identities[3]
    assert compression or len({text.rpartition(", ")[0] for text in identities}) == 1  # as many records and bytes


@pytest.mark.full
def test_a_job_notices_records_of_the_same_size(tmp_path):
    """And names the file; with allow_change it resumes."""
    import tensorflow as tf

    def read(example):
        row = tf.io.parse_single_example(example, {"x": tf.io.FixedLenFeature([4], tf.float32)})
        return row["x"], 1

    def run(epochs, **changes):
        return training_job(tmp_path / "job", **changes).run_train(get_train_ds(tmp_path, read, 4), None, epochs)

    x = X[:8].copy()
    write_arrays(tmp_path, "train", {"x": x})
    run(1)
    run(2)
    x[5] += 1
    write_arrays(tmp_path, "train", {"x": x})
    with pytest.raises(UsageError) as refused:
        run(3)
    assert refused.value.key.startswith("train_ds.files.train-00000-of-00001")
    assert run(3, allow_change=["data"]).epoch == [0, 1, 2]


def test_what_is_sorted_by_class_is_shuffled_when_it_is_written(tmp_path):
    """Always in the same way, over all files; no record is lost, and the order is kept where that is requested."""
    rows = {"class": np.repeat(np.arange(10), 50)}
    first = write_arrays(tmp_path / "a", "train", rows, shards=2).files
    again = write_arrays(tmp_path / "b", "train", rows, shards=2).files
    other = write_arrays(tmp_path / "c", "train", rows, shards=2, seed=1).files
    assert [Path(file).read_bytes() for file in first] == [Path(file).read_bytes() for file in again]
    assert Path(first[0]).read_bytes() != Path(other[0]).read_bytes()
    classes = [int(shown["class"]) for shown in inspect(first, examples=500).examples]
    assert sorted(classes) == rows["class"].tolist()
    assert all(len(set(classes[start : start + 50])) > 7 for start in range(0, 500, 50))
    kept = write_arrays(tmp_path / "d", "train", rows, shuffle=False).files
    assert [int(shown["class"]) for shown in inspect(kept, examples=500).examples] == rows["class"].tolist()
