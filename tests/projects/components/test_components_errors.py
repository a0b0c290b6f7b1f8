"""Errors in config files and components: each is refused before training, in one line with its key and its file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from components_project import SOURCES, write_run, write_source

from everstep.components import Orchestrator
from everstep.errors import UsageError
from everstep.projects.components.orchestrator import _locked
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Fault(NamedTuple):
    """What is wrong (values of the config file, a module's text, or something in the folder), and the error."""

    key: str
    message: str
    config: dict[str, Any] = {}
    module: str = ""
    old: str = ""
    new: str = ""
    spoil: Callable[[Path], Any] | None = None


def _second_file(folder: Path) -> None:
    (folder / "other.yaml").write_text("seed: 1\n")


def _append(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + text)


LOADER, PREPROCESSOR, MODEL, EVALUATOR = (
    f"{name}_class" for name in ("data_loader", "preprocessor", "model_builder", "evaluator")
)
VALIDATION = "return self._generator(paths, labels, False), len(paths)"
BATCH = "return self._batch_gen(generator, self.batch_size), self.n_iter(n_data_points)"
WEIGHT = "yield self._read_image(paths[index]), labels[index], 1"
FUNCTION = "return scce(y_true, y_pred)"
FUNCTIONS = 'return {"sparse categorical ce": self.get_cat_loss()}'

CALLBACKS = "def get_callbacks(self):\n            return ['early']\n\n        "

FAULTS = {
    # the config file
    "missing key": Fault(EVALUATOR, "missing: .*'evaluation.Evaluator'", {"evaluator_class": None}),
    "mistyped key": Fault("epoch", "did you mean 'epochs'", {"epochs": None}, spoil=_append("epoch: 3\n")),
    "no epochs": Fault("epochs", "missing", {"epochs": None}),
    "no yaml": Fault(
        "", r"'.*/runs/a' contains no \*.yaml", spoil=lambda f: (f / "config.yaml").rename(f / "config.yml")
    ),
    "two yamls": Fault("", r"several \*.yaml files \(config.yaml, other.yaml\)", spoil=_second_file),
    "no mapping": Fault("", "expected keys with values", spoil=lambda f: (f / "config.yaml").write_text("- seed: 1\n")),
    "key given twice": Fault("", "'batch_size' is given twice", spoil=_append("batch_size: 4\n")),
    "unhashable key": Fault("", "config.yaml.*line", spoil=_append("{a: 1}: 2\n")),
    "bad mode": Fault("export.mode", "received 'best', must be 'min' or 'max'", {"export": {"mode": "best"}}),
    "bad epochs": Fault("epochs", "received -1, must be at least 1", {"epochs": -1}),
    "bad batch size": Fault("batch_size", "received 'many'", {"batch_size": "many"}),
    "unknown metric": Fault(
        "export.metric", r"received 'val_los', .*\(metrics: loss,.*did you mean 'val_loss'",
        {"export": {"metric": "val_los"}},
    ),
    "data_dir missing": Fault("data_dir", "received '.*/nowhere', does not exist", {"data_dir": "nowhere"}),
    "no folder of classes": Fault("src_code_path", "received 'source', there is no", {"src_code_path": "source"}),
    "out of the project": Fault("src_code_path", "must be inside the project", {"src_code_path": ".."}),
    "a key in the value": Fault(
        EVALUATOR, "contains a key: write evaluator_class: evaluation.Evaluator",
        {"evaluator_class": "evaluator_class: evaluation.Evaluator"},
    ),
    "no augmentor": Fault("augmentor_class", "missing, but do_train_aug", {"do_train_augmentation": True}),
    # the classes
    "class not found": Fault(
        MODEL, "received 'models.Builder', the module 'models' has no 'Builder': did you mean 'ModelBuilder'",
        {"model_builder_class": "models.Builder"},
    ),
    "module not found": Fault(
        MODEL, "contains no module 'model': did you mean 'models'", {"model_builder_class": "model.ModelBuilder"}
    ),
    "class of another base": Fault(
        LOADER, "must be a class derived from DataLoaderBase, but is the class ModelBuilder",
        {"data_loader_class": "models.ModelBuilder"},
    ),
    "syntax error": Fault(
        MODEL, r"importing 'models' failed at .*models.py:\d+: SyntaxError", {}, "models", "import keras", "import ("
    ),
    "import of what is not there": Fault(
        MODEL, r"failed at .*models.py:\d+: ModuleNotFoundError", {}, "models", "import keras", "import kerras"
    ),
    "missing method": Fault(
        PREPROCESSOR, "preprocessing.Preprocessor does not define batchify", {}, "preprocessing", "def batchify",
        "def batches"
    ),
    "constructor raises": Fault(
        LOADER, r"dataset.DataLoader\(config\) failed at .*dataset.py:\d+: AttributeError",
        {}, "dataset", 'joinpath("train")', 'join("train")'
    ),
    "unknown key read": Fault(
        "preprocessor.normalise_by", "is read but not set: did you mean 'normalize_by'", {}, "preprocessing",
        "config.preprocessor.normalize_by", "config.preprocessor.normalise_by"
    ),
    # the data
    "n is 0": Fault(LOADER, r"create_validation_generator\(\): received 0", {}, "dataset", VALIDATION,
                    VALIDATION.replace("len(paths)", "0")),
    "n left out": Fault(LOADER, r"create_validation_generator\(\): .*returned generator", {}, "dataset", VALIDATION,
                        VALIDATION.replace(", len(paths)", "")),
    "n wrong": Fault(
        LOADER, r"get_validation_index\(\): returned 25 ids for 30", {}, "dataset", VALIDATION,
        VALIDATION.replace("len(paths)", "30")
    ),
    "ids wrong": Fault(LOADER, r"get_validation_index\(\): returned 24 ids for 25", {}, "dataset", "[2]]", "[2]][1:]"),
    "no ids": Fault(LOADER, r"get_validation_index\(\) failed at .*dataset.py:\d+: KeyError", {}, "dataset",
                    'row["image name"] for', 'row["name"] for'),
    "batch of four": Fault(PREPROCESSOR, "validation data: .*but is a tuple of 4", {}, "preprocessing",
                           "yield tuple(np.array(part) for part in parts)",
                           "yield (*(np.array(part) for part in parts), 1)"),
    "parts of different sizes": Fault(PREPROCESSOR, "contain different numbers of samples", {}, "preprocessing",
                                      "np.array(part) for", "np.array(part)[: 4 + 4 * (part is parts[0])] for"),
    "n_iter wrong": Fault(
        PREPROCESSOR, "batchify announced 7 batches for 60 samples, but they fill 8", {}, "preprocessing", BATCH,
        BATCH.replace("self.n_iter(n_data_points)", "n_data_points // self.batch_size or 1")
    ),
    "preprocessor raises": Fault(
        PREPROCESSOR, r"Preprocessor.image_preprocess\(\) failed at .*preprocessing.py:\d+: ValueError: cannot reshape",
        {"input_height": 27}
    ),
    "loader raises": Fault(
        LOADER, r"dataset.DataLoader._read_image\(\) failed at .*dataset.py:\d+: AttributeError", {}, "dataset",
        "return np.asarray(Image", "return np.asarry(Image"
    ),
    "text labels": Fault(
        PREPROCESSOR, r"label_preprocess\(\): received '\d', labels must be numbers", {}, "preprocessing",
        "return label", "return str(label)"
    ),
    "text labels of test data": Fault(
        PREPROCESSOR, r"label_preprocess\(\): received '\d', labels must be numbers", {}, "dataset",
        "yield self._read_image(path), label, data_id", "yield self._read_image(path), str(label), data_id"
    ),
    "negative class weights": Fault(
        MODEL, r"get_class_weight\(\): has the weight -1.0 for class 3, but weights must be at least 0", {}, "models",
        "def get_compiled", "def get_class_weight(self):\n            return {3: -1.0}\n\n        def get_compiled"
    ),
    "negative weights": Fault(
        LOADER, "a weight of .* is -1.0, but weights must be finite and not negative", {}, "dataset", WEIGHT,
        WEIGHT[:-1] + "-1.0"
    ),
    "batches of another size": Fault(
        PREPROCESSOR, "training batches have 6 samples, but batch_size is 8: let batchify use config.batch_size", {},
        "preprocessing", "self.batch_size = config.batch_size", "self.batch_size = 6"
    ),
    # model, loss, functions
    "model not compiled": Fault(MODEL, "is not compiled", {}, "models", "model.compile(", "dict("),
    "no model": Fault(MODEL, "must return a compiled keras.Model, but returned None", {}, "models", "return model",
                      "return None"),
    "wrong input shape": Fault(
        MODEL, r"the model takes x of shape \(None, 28, 28\), but a batch has \(8, 784\)", {}, "models",
        "keras.Input((self.input_h * self.input_w,))", "keras.Input((28, 28))"
    ),
    "label out of range": Fault(
        MODEL, r"the label \d is no class: the model has 5 classes, so labels are whole numbers from 0 to 4", {},
        "models", "Dense(10", "Dense(5"
    ),
    "labels of another form": Fault(
        MODEL, r"labels have \(8,\) and outputs \(8, 10\): labels look like numbers of classes", {}, "models",
        "keras.losses.Sparse", "keras.losses."
    ),
    "loss raises": Fault(MODEL, "the loss fails on labels of shape .*ZeroDivision", {}, "models",
                         "keras.losses.SparseCategoricalCrossentropy()", "lambda y, p: 1 / 0"),
    "no callbacks": Fault(MODEL, r"get_callbacks\(\): received 'early', must return Keras callbacks", {}, "models",
                          "def get_compiled", CALLBACKS + "def get_compiled"),
    "a vector": Fault(EVALUATOR, "metrics.sparse categorical ce: returned .*shape .10,.*return one number", {},
                      "evaluation", FUNCTION, "return y_pred"),
    "function raises": Fault(
        EVALUATOR, "metrics.sparse categorical ce: failed on sample '0': ZeroDivisionError", {}, "evaluation",
        FUNCTION, "return 1 / 0"
    ),
    "a text": Fault(
        EVALUATOR, "metrics.sparse categorical ce: returned 'good'", {}, "evaluation", FUNCTION, "return 'good'"
    ),
    "two functions of one name": Fault(
        EVALUATOR, "received 'cross_entropy', two metrics have this name", {}, "evaluation", FUNCTIONS,
        "from everstep.evaluation import CrossEntropy\n            return [CrossEntropy(), CrossEntropy()]"
    ),
    "no functions": Fault(EVALUATOR, "received 7", {}, "evaluation", FUNCTIONS, "return 7"),
}  # fmt: skip


ON_EACH_BACKEND = {"wrong input shape", "label out of range", "loss raises", "a vector", "unknown metric"}
NAMES = [pytest.param(name, marks=[pytest.mark.backend] if name in ON_EACH_BACKEND else []) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_one_line_before_training(name, tmp_path, data, untracked):
    fault = FAULTS[name]
    changed = SOURCES[f"{fault.module}.py"].replace(fault.old, fault.new) if fault.module else ""
    write_source(tmp_path, **({fault.module: changed} if fault.module else {}))
    folder = write_run(tmp_path, **fault.config)
    if fault.spoil:
        fault.spoil(folder)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UsageError) as refused:
        Orchestrator("a", tmp_path, None if "data_dir" in fault.config else data, verbose=False).run()
    text = str(refused.value)
    assert not fault.key or refused.value.key == fault.key, text
    assert re.search(fault.message, text), text
    assert "\n" not in text
    assert str(folder) in text, "the file is named"
    assert sorted(path.name for path in folder.iterdir()) == before, "nothing is left behind"


def test_a_failure_that_is_no_mistake_of_the_users_leaves_no_lock_behind(tmp_path):
    with pytest.raises(RuntimeError), _locked(tmp_path):
        raise RuntimeError("a bug")
    assert list(tmp_path.iterdir()) == []


def test_there_are_many():
    assert len(FAULTS) >= 20
    assert set(FAULTS) >= ON_EACH_BACKEND
    changed = [fault for fault in FAULTS.values() if fault.module]
    assert all(fault.old in SOURCES[f"{fault.module}.py"] for fault in changed), "each changes something"


def test_an_unknown_run_and_a_folder_of_data_that_is_not_there(tmp_path):
    write_source(tmp_path)
    write_run(tmp_path)
    with raises_problem(key="run_name", reason="'.*/runs' contains no run 'b'", remedy="known: 'a'"):
        Orchestrator("b", tmp_path)
    with raises_problem(key="run_name", received="../a", reason="must be the name"):
        Orchestrator("../a", tmp_path)
    with raises_problem(key="data_dir", reason="does not exist") as refused:
        Orchestrator("a", tmp_path, tmp_path / "x")
    assert (refused.value.key, refused.value.origin) == ("data_dir", "the argument data_dir")
