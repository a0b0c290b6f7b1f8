"""`hub/text_classifier` and `hub/image_classifier`."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

import everstep as es
from everstep.errors import UsageError
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
    data = {"input_path": images, "size": 16, "global_batch_size": 4, "workers": 0}
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", family), data)
    task = es.get_task(params.task)
    _, logs = es.run_experiment(task, params, tmp_path / "run", export=False, verbose=False)
    assert np.isfinite(logs["validation_loss"])
    scaled, _, _ = task.unpack((np.full((1, 2, 2, 3), 255, "uint8"), None))
    assert float(keras.ops.max(scaled)) == pytest.approx(1.0)  # as the preset says


def test_images_of_another_size_are_refused(tiny_preset, images):
    data = {"input_path": images, "size": 24}
    params = experiment("hub/image_classifier", tiny_preset("image_classifier", "vit"), data)
    task = es.get_task(params.task)
    with pytest.raises(UsageError) as error:
        task.build_model()
    assert error.value.key == "task.train_data.size"
    assert "[16, 16]" in error.value.remedy
