"""`hub/text_classifier` and `hub/image_classifier`."""

import json

import numpy as np
import pytest

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
