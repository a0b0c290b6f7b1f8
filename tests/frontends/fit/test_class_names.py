"""Names of classes in `fit`: given, of the data, or of labels of text; images that are left out are evaluated."""

import keras
import numpy as np
import pytest
from PIL import Image

import everstep
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.run import read
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
NUMBERS = (X[:, 0] > 0).astype("int32")
NAMES = np.array(["no", "yes"])
GIVEN = {"epochs": 1, "verbose": 0, "seed": 0}


def model(units=2, loss="sparse_categorical_crossentropy", activation="softmax"):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation)])
    made.compile("sgd", loss, metrics=["accuracy"])
    return made


def test_given_names_are_recorded(tmp_path):
    everstep.fit(model(), X, NUMBERS, class_names=["no", "yes"], model_dir=tmp_path / "run", **GIVEN)
    assert read(tmp_path / "run")["classes"] == ["no", "yes"]


@pytest.mark.parametrize(
    ("loss", "units", "activation"),
    [("sparse_categorical_crossentropy", 2, "softmax"), ("binary_crossentropy", 1, "sigmoid")],
)
def test_labels_of_text_are_numbered(tmp_path, loss, units, activation, capsys):
    texts = NAMES[NUMBERS]
    wanted = everstep.fit(model(units, loss, activation), X, NUMBERS, validation_data=(X, NUMBERS), **GIVEN).history
    for y in (texts, texts.tolist(), texts.astype(object), texts[:, None]):
        validation = (X, texts.tolist())
        found = everstep.fit(model(units, loss, activation), X, y, validation_data=validation, **GIVEN)
        assert found.history == wanted
    assert capsys.readouterr().err == ""
    data = (X, texts)
    everstep.fit(model(units, loss, activation), data, model_dir=tmp_path / "run", **{**GIVEN, "verbose": 2})
    assert "labels are numbered: 0 no, 1 yes" in capsys.readouterr().err
    assert read(tmp_path / "run")["classes"] == ["no", "yes"]


def test_the_order_of_given_names(tmp_path):
    everstep.fit(model(), X, NAMES[NUMBERS], class_names=["yes", "no"], model_dir=tmp_path / "run", **GIVEN)
    assert read(tmp_path / "run")["classes"] == ["yes", "no"]


def test_a_resumed_run_has_the_same_classes(tmp_path):
    everstep.fit(model(), X, NAMES[NUMBERS], model_dir=tmp_path / "run", **GIVEN)
    others = np.array(["never", "yes"])[NUMBERS]
    with raises_problem(key="class_names", reason="the run was trained on the classes no, yes"):
        everstep.fit(model(), X, others, model_dir=tmp_path / "run", **{**GIVEN, "epochs": 2})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no", "expected a list of the classes' names"),
        ([], "expected a list of the classes' names"),
        (["a", "a"], "has a name twice"),
        (["a", "b", "c"], "there are 3 names, and the model has 2 outputs"),
    ],
)
def test_wrong_names(given, reason):
    with raises_problem(key="class_names", reason=reason):
        everstep.fit(model(), X, NUMBERS, class_names=given, **GIVEN)


def test_labels_that_are_no_class():
    with raises_problem(key="y", received="yes", reason="the label is none of the 2 classes"):
        everstep.fit(model(), X, NAMES[NUMBERS], class_names=["no", "yep"], **GIVEN)
    with raises_problem(key="validation_data", received="maybe"):
        everstep.fit(model(), X, NAMES[NUMBERS], validation_data=(X, np.full(24, "maybe")), **GIVEN)
    with raises_problem(key="y", reason="holds text"):
        everstep.fit(model(loss="mse"), X, NAMES[NUMBERS], **GIVEN)


def test_images_that_are_left_out_are_evaluated(tmp_path):
    for name in ("a", "b"):
        for number in range(10):
            path = tmp_path / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((2, 2), number, np.uint8)).save(path)
    config = ImageDataConfig(input_path=str(tmp_path / "pictures"), size=2, channels=1, workers=0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
    made = keras.Sequential([keras.Input((2, 2, 1)), *layers])
    made.compile("sgd", "sparse_categorical_crossentropy")
    source = ImageSource(config.replace(validation_split=0.4))
    found = everstep.fit(made, source, model_dir=tmp_path / "run", batch_size=4, **GIVEN)
    assert "val_loss" in found.history
    assert read(tmp_path / "run")["classes"] == ["a", "b"]
    with raises_problem(key="validation_split", remedy=r"ImageDataConfig\(…, validation_split=0.2\)"):
        everstep.fit(made, ImageSource(config), validation_split=0.2, **GIVEN)
    (tmp_path / "pictures" / "b").rename(tmp_path / "b")
    with raises_problem(key="validation_data", reason="has other classes than the training data", received=["b"]):
        everstep.fit(made, source, validation_data=others(tmp_path), **GIVEN)


def others(tmp_path):
    """Returns the images of the folder that lacks the first class: there, the number 0 is the second one."""
    (tmp_path / "others").mkdir()
    (tmp_path / "b").rename(tmp_path / "others" / "b")
    return ImageSource(ImageDataConfig(input_path=str(tmp_path / "others"), size=2, channels=1, workers=0))
