"""`hub/text_classifier` and `hub/image_classifier`."""

import json
import re
import shutil
import tracemalloc

import keras
import numpy as np
import pytest
from PIL import Image

import everstep as es
from everstep.errors import BadDataError, UsageError
from everstep.recipes.hub.text_classifier import TextClassifierTask
from everstep.run.exit_codes import exit_code
from everstep.testing.hub import TEXT

pytestmark = pytest.mark.backend

CLASSES = ["animals", "others"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"text": text, "label": CLASSES["dog" not in text]} for text in TEXT]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def bert(tiny_preset):
    return tiny_preset("text_classifier", "bert")


def experiment(name, preset, data, **task):
    params = es.get_exp_config(name)
    params.override(
        {
            "task": {"preset": preset, "classes": CLASSES, "train_data": data, "validation_data": data},
            "trainer": {"train_steps": 4, "steps_per_loop": 2, "validation_interval": 4, "checkpoint_interval": 4},
        }
    )
    params.override({"task": task})
    return params


def refused(params):
    task = es.get_task(params.task)
    with pytest.raises(UsageError) as error:
        task.build_inputs(params.task.train_data)
    return error.value


def test_a_text_classifier_trains(bert, texts, tmp_path):
    params = experiment("hub/text_classifier", bert, {"input_path": texts, "global_batch_size": 4}, lora={"rank": 2})
    task = es.get_task(params.task)
    model, logs = es.run_experiment(task, params, tmp_path / "run", export=False, verbose=False)
    trained = {variable.path.rpartition("/")[2] for variable in model.trainable_variables}
    assert trained == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}  # adapters and the head
    assert np.isfinite(logs["validation_loss"])
    assert 0 <= logs["accuracy"] <= 1


def test_texts_and_classes_that_do_not_fit_are_refused(bert, texts, tmp_path):
    def with_data(classes=CLASSES, **data):
        return experiment("hub/text_classifier", bert, {"input_path": texts, **data}, classes=classes)

    error = refused(with_data(classes=["animals", "birds"]))
    assert "'others'" in error.reason
    assert "line 2" in error.origin
    error = refused(with_data(sequence_length=8))
    assert "long_texts" in str(error)
    assert refused(with_data(classes=["animals"])).key == "task.classes"
    assert "txt" in str(refused(with_data(text_column="txt")))
    task = es.get_task(with_data(sequence_length=8, long_texts="truncate").task)
    features, labels = task.build_inputs(task.task_config.train_data)
    assert features["token_ids"].shape == (len(TEXT), 8)
    assert labels.tolist() == [int("dog" not in text) for text in TEXT]


@pytest.mark.daily("torch")
def test_tokens_are_the_same_however_many_texts_are_read_at_once(bert, tmp_path, monkeypatch):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "".join(f"{text},{index % 2}\n" for index, text in enumerate(TEXT)), "utf-8")
    params = experiment("hub/text_classifier", bert, {"input_path": str(path)})
    task = es.get_task(params.task)
    whole, labels = task.build_inputs(params.task.train_data)
    assert labels.tolist() == [index % 2 for index in range(len(TEXT))]
    monkeypatch.setattr(TextClassifierTask, "rows_at_once", 3)
    parts, same = task.build_inputs(params.task.train_data)
    assert same.tolist() == labels.tolist()
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array)
    monkeypatch.setattr(TextClassifierTask, "rows_at_once", len(TEXT) - 1)
    params.task.train_data.override({"sequence_length": 8})
    assert refused(params).origin.endswith("line 2")


@pytest.mark.full
@pytest.mark.daily("torch")
def test_more_texts_need_no_more_memory(bert, tmp_path, monkeypatch):
    """The arrays are in files. Labels and places of lines are in memory, some bytes a text."""

    def peak(count):
        path = tmp_path / f"{count}.jsonl"
        row = json.dumps({"text": " ".join(TEXT), "label": 0})
        path.write_text(f"{row}\n" * count, "utf-8")
        data = {"input_path": str(path), "long_texts": "truncate"}
        params = experiment("hub/text_classifier", bert, data)
        task = es.get_task(params.task)
        task.build_model()
        tracemalloc.start()
        try:
            arrays, labels = task.build_inputs(params.task.train_data)
            assert len(labels) == len(arrays["token_ids"]) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(TextClassifierTask, "rows_at_once", 16)
    peak(16)  # what is imported and cached
    assert peak(512) < 1.5 * peak(64)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir()
        for index in range(4):
            pixels = random.integers(128 * number, 128 * number + 128, (16, 16, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return str(folder)


@pytest.mark.parametrize("family", ["vit", pytest.param("resnet", marks=pytest.mark.full)])
def test_an_image_classifier_trains(family, tiny_preset, images, tmp_path):
    """Images get the size of the preset: fixed in this ViT, usual in this ResNet."""
    data = {"input_path": images, "global_batch_size": 4, "workers": 0}
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", family), data)
    task = es.get_task(params.task)
    _, logs = es.run_experiment(task, params, tmp_path / "run", export=False, verbose=False)
    assert np.isfinite(logs["validation_loss"])
    scaled, _, _ = task.unpack((np.full((1, 2, 2, 3), 255, "uint8"), None))
    assert float(keras.ops.max(scaled)) == pytest.approx(1.0)  # as the preset says


@pytest.mark.daily("torch")
def test_images_get_the_size_of_the_preset_or_that_of_the_training_data(tiny_preset, images):
    def sizes(family, **train_data):
        params = experiment("hub/image_classifier", tiny_preset("image_classifier", family), {"input_path": images})
        params.task.train_data.override(train_data)
        task = es.get_task(params.task)
        sources = [task.build_inputs(data) for data in (params.task.train_data, params.task.validation_data)]
        return [source.config.height_and_width for source in sources]

    assert sizes("vit") == [(16, 16)] * 2
    assert sizes("resnet") == [(16, 16)] * 2
    assert sizes("resnet", size=[24, 32]) == [(24, 32)] * 2


@pytest.mark.daily("torch")
def test_a_size_is_required_where_the_preset_has_none(tiny_preset, images):
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", "resnet"), {"input_path": images})
    task = es.get_task(params.task)
    task._sizes = (None, None)
    with pytest.raises(UsageError) as error:
        task.build_inputs(params.task.train_data)
    assert error.value.key == "size"


@pytest.mark.daily("torch")
def test_an_image_that_is_damaged_after_training_began(tiny_preset, images, tmp_path):
    """The run ends as one ends that finds it at once: with the file and the exit code 2. It keeps what it has saved."""
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    damaged = folder / CLASSES[0] / "0.png"
    data = {"input_path": str(folder), "global_batch_size": 1, "workers": 0}
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", "vit"), data)
    params.override({"trainer": {"train_steps": 40, "steps_per_loop": 1, "checkpoint_interval": 1}})

    def damage(logs):
        damaged.write_bytes(damaged.read_bytes()[:60])

    with pytest.raises(BadDataError) as error:
        es.run_experiment(
            es.get_task(params.task), params, tmp_path / "run", "train", train_actions=[damage], export=False
        )
    assert (error.value.key, error.value.received) == ("task.train_data.input_path", str(damaged))
    assert re.match(r"after step \d+: is damaged", error.value.reason)
    assert exit_code(error.value) == 2
    assert list((tmp_path / "run" / "checkpoints").glob("[1-9]*"))


def test_images_of_another_size_are_refused(tiny_preset, images):
    data = {"input_path": images, "size": 24}
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", "vit"), data)
    task = es.get_task(params.task)
    with pytest.raises(UsageError) as error:
        task.build_model()
    assert error.value.key == "task.train_data.size"
    assert "[16, 16]" in error.value.remedy
