"""Samples and histograms to the trackers: what arrives, and that training does not notice."""

import json

import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import everstep as es
from everstep.run.trackers import SampleTracker, images_or_text
from everstep.task.classification import ClassificationTask
from everstep.tracking.tracker import MemoryTracker

pytestmark = pytest.mark.slow


class Stripes(ClassificationTask):
    """Pictures that are dark or bright; a layer with state and one that draws numbers are in the model."""

    def build_model(self):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(2)])

    def build_inputs(self, params, input_context=None):
        labels = np.arange(16) % 2
        return np.stack([np.full((8, 8, 1), label, "float32") for label in labels]), labels.astype("int32")


class Telling(Stripes):
    """Says something beside what is shown anyway, and draws random numbers while it does."""

    def show(self, inputs, outputs):
        np.random.shuffle(np.arange(3))
        self.shape = outputs.shape
        return {**super().show(inputs, outputs), "words": ["a < b", "ç"]}


def run(task, directory, steps=8, **tracking):
    params = es.ExperimentConfig()
    params.override(
        {
            "task": {"train_data": {"global_batch_size": 4}, "validation_data": {"global_batch_size": 8}},
            "trainer": {"train_steps": steps, "steps_per_loop": 2, "validation_interval": 4, "checkpoint_interval": 4},
        }
    )
    params.override({"trainer": {"tracking": tracking}})
    es.run_experiment(task, params, directory, export=False, verbose=False)
    return json.loads((directory / "run.json").read_text())


@pytest.mark.backend
def test_samples_and_histograms_are_shown_and_training_keeps_its_bits(tmp_path):
    plain = run(Stripes(), tmp_path / "plain")
    drawn = np.random.get_state()[1].tolist()
    task = Telling()
    shown = run(task, tmp_path / "run", samples=3, histogram_interval=4)
    assert shown["digest"] == plain["digest"]
    assert np.random.get_state()[1].tolist() == drawn
    assert not (tmp_path / "plain" / "samples").exists()
    assert sorted(path.name for path in (tmp_path / "run" / "samples").iterdir()) == ["4", "8"]
    assert task.shape == (3, 2)
    check_samples(tmp_path / "run")
    check_histograms(tmp_path / "run")


def check_samples(directory):
    """The pictures with truth and prediction, and the words of the task's own, in files and in TensorBoard."""
    folder = directory / "samples" / "8"
    assert len(list(folder.iterdir())) == 5
    assert np.asarray(Image.open(folder / "predictions-1.png")).tolist() == np.full((8, 8), 255).tolist()
    captions = (folder / "predictions.captions.txt").read_text().splitlines()
    assert [caption.partition(",")[0] for caption in captions] == ["truth 0", "truth 1", "truth 0"]
    assert (folder / "words.txt").read_text() == "a < b\n\nç\n"
    events = EventAccumulator(str(directory / "validation")).Reload()
    assert [image.step for image in events.Images("predictions/1")] == [4, 8]
    assert events.Images("predictions/1")[1].encoded_image_string == (folder / "predictions-1.png").read_bytes()
    texts = events.Tensors("predictions/captions")[1].tensor_proto.string_val
    assert [text.decode() for text in texts] == [f"{number}: {caption}" for number, caption in enumerate(captions)]


def check_histograms(directory):
    events = EventAccumulator(str(directory / "train"), size_guidance={"histograms": 0}).Reload()
    names = ["batch_normalization/beta", "batch_normalization/gamma", "dense/bias", "dense/kernel"]
    assert sorted(events.Tags()["histograms"]) == names
    assert [event.step for event in events.Histograms("dense/kernel")] == [4, 8]
    assert sum(events.Histograms("dense/kernel")[0].histogram_value.bucket) == 128


def test_a_failure_is_logged_once_and_stops_nothing(caplog):
    inner = MemoryTracker()
    config = es.TrainerConfig().tracking.replace(samples=2, histogram_interval=2)
    tracker = SampleTracker(inner, None, config)
    for step in (2, 4):
        tracker.log(step, {"loss": 1.0}, "train")
        tracker.log(step, {"loss": 1.0}, "validation")
    assert len(inner.points) == 4
    message = "cannot be logged, and are switched off; training continues"
    assert [record.getMessage() for record in caplog.records] == [f"histograms {message}", f"samples {message}"]
    assert "AttributeError" in caplog.text  # with its traceback


@pytest.mark.parametrize("value", [3, np.zeros(3), ("a", "b"), {"a": 1}, [np.zeros((8, 8)), "text"]])
def test_what_is_neither_image_nor_text_is_named(value):
    with pytest.raises(TypeError, match="show returned for 'odd' neither texts nor images"):
        images_or_text("odd", value, 2)


def test_missing_captions_are_empty_and_the_number_of_samples_is_limited():
    kind, pictures, captions = images_or_text("some", (np.zeros((4, 8, 8)), ["one"]), 3)
    assert (kind, len(pictures), captions) == ("images", 3, ["one", "", ""])
    assert images_or_text("words", "one text", 3) == ("text", ["one text"], ())
    assert images_or_text("words", ["a", "b", "c"], 2) == ("text", ["a", "b"], ())
