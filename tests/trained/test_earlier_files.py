"""`.keras` files that name modules of Everstep by their paths at the time of writing."""

import importlib
import json
import zipfile

import keras
import numpy as np
import pytest

from everstep.recipes.bct.embedding import Classifier
from everstep.testing.problems import raises_problem
from everstep.trained.models import _own_modules, load_keras

pytestmark = pytest.mark.backend

EARLIER = {
    "everstep.bct.classifier": "Classifier",
    "everstep.bct.model": "BCTModel",
    "everstep.optim.adafactor": "Adafactor",
    "everstep.optim.cosine_schedules": "StepCosine",
    "everstep.optim.ema": "ExponentialMovingAverage",
    "everstep.optim.layerwise": "Lars",
    "everstep.optim.loss_scale": "FixedLossScaleOptimizer",
    "everstep.optim.power_schedules": "PowerLinear",
    "everstep.optim.schedules": "Offset",
    "everstep.optim.weight_decay": "SelectiveAdamW",
}


@pytest.mark.parametrize("module", EARLIER)
def test_classes_of_earlier_modules_are_found_and_registered(module):
    found = [importlib.import_module(name) for name in _own_modules(module)]
    (cls,) = {vars(one)[EARLIER[module]] for one in found if EARLIER[module] in vars(one)}
    assert keras.saving.get_registered_name(cls) == f"everstep>{EARLIER[module]}"


@pytest.mark.parametrize(
    "module", ["everstep", "everstep.__main__", "everstep.nowhere", "everstep.no.where", "os.path"]
)
def test_other_modules_are_not_imported(module):
    assert [name for name in _own_modules(module) if importlib.util.find_spec(name) is not None] == []


@pytest.mark.parametrize(
    ("module", "today"),
    [
        ("everstep.catalog.formats", "everstep.projects.catalog.formats"),
        ("everstep.frontends.catalog.formats", "everstep.projects.catalog.formats"),
        ("everstep.frontends.fit.fitting", "everstep.frontends.fit.fitting"),
        ("everstep.launch.sweep.space", "everstep.sweeps.space"),
        ("everstep.launch.tuner.trials", "everstep.tuner.trials"),
        ("everstep.quick.trials", "everstep.tuner.trials"),
        ("everstep.submit.snapshot", "everstep.submit.snapshot"),
        ("everstep.sweeps.space", "everstep.sweeps.space"),
        ("everstep.sweeps.tuner.trials", "everstep.tuner.trials"),
    ],
)
def test_earlier_packages_are_found_where_they_are_today(module, today):
    assert _own_modules(module) == [today]


def test_a_file_with_an_earlier_module_loads(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Classifier(["a", "b", "c"])])
    model.save(tmp_path / "new.keras")
    with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name == "config.json":
                text = content.decode()
                assert "everstep.recipes.bct." in text
                content = text.replace("everstep.recipes.bct.", "everstep.bct.").encode()
                json.loads(content)
            old.writestr(name, content)
    x = np.ones((2, 4), "float32")
    outputs = [keras.ops.convert_to_numpy(one(x)) for one in (load_keras(tmp_path / "old.keras"), model)]
    np.testing.assert_array_equal(*outputs)


def test_an_unknown_class_is_an_error_that_names_it(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Classifier(["a", "b", "c"])])
    model.save(tmp_path / "new.keras")
    with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
        for name in new.namelist():
            old.writestr(name, new.read(name).replace(b"Classifier", b"Vanished"))
    with raises_problem(key="model", reason="Vanished"):
        load_keras(tmp_path / "old.keras")
