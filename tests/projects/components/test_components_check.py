"""A project checked before it is trained: what is fine, what is not, in one line each."""

import re

import pytest
from components_project import DATASET, EVALUATION, MODELS, PREPROCESSING, write_run, write_source

from everstep.projects.components.checks.all_checks import CHECKS
from everstep.projects.components.checks.runner import Subject, run_checks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

AUGMENTATION = """
    from everstep.components import AugmentorBase

    class Augmentor(AugmentorBase):
        def add_augmentation(self, generator):
            return ((x[::-1], y, w) for x, y, w in generator)

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass
"""


def needed(*names):
    """The checks of these names, and those that they need, in their order."""
    wanted = set(names)
    for check in reversed(CHECKS):
        wanted |= set(check.needs) if check.name in wanted else set()
    assert wanted <= {check.name for check in CHECKS}
    return [check for check in CHECKS if check.name in wanted]


def checked(root, data, *names, run="a", max_samples=None):
    """Runs checks, all of them unless some are named; returns their lines by check."""
    found = {}
    with Subject(run, root, data, max_samples) as subject:
        for outcome in run_checks(subject, needed(*names) if names else CHECKS):
            found.setdefault(outcome.check, []).append(str(outcome))
        scratch = subject.scratch
        assert scratch.is_dir()
    assert not scratch.exists()
    return found


def files(root):
    return sorted(str(path) for path in root.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.backend
@pytest.mark.parametrize("flavour", ["", pytest.param("TF", marks=pytest.mark.full)])
def test_a_project_that_is_fine(tmp_path, data, flavour):
    write_source(tmp_path, augmentation=AUGMENTATION)
    augmented = {} if flavour else {"augmentor_class": "augmentation.Augmentor", "do_train_augmentation": True}
    write_run(tmp_path, flavour=flavour, **augmented)
    before = files(tmp_path)
    found = checked(tmp_path, data)
    lines = [line for each in found.values() for line in each]
    assert not [line for line in lines if line.startswith(("FAIL", "warn"))]
    assert files(tmp_path) == before, "nothing is left behind"
    assert found["training batches"] == [
        "ok   preprocessor: 60 training samples fill 8 batches of 8, 4 in the last, each sample once"
    ]
    assert found["class weights"] == ["skip model_builder: get_class_weight() returns None"]
    assert re.search(r"falls from \d\.\d+ to \d\.\d+ in \d+ steps", found["overfitting"][0])
    assert "augmented training samples keep" in found["augmentation"][0] if augmented else True
    assert "means of 8, untrained: sparse categorical ce 2." in found["functions"][0]
    assert "the untrained model can be exported and loaded" in found["export"][0]
    assert len([line for line in lines if line.startswith("ok")]) >= 24


def test_what_depends_on_a_failed_check_is_skipped_and_all_else_is_checked(tmp_path, data):
    write_source(tmp_path)
    write_run(tmp_path, model_builder={})
    found = checked(tmp_path, data, "training batches", "model", "input", "test ids")
    assert found["build model_builder"][0].startswith("FAIL model_builder: model_builder.activation: is read but")
    assert found["model"] == ["skip model_builder: model: depends on build model_builder"]
    assert found["training batches"][0].startswith("ok ")
    assert found["input"] == ["skip model_builder: input: depends on model"]
    assert found["test ids"][0].startswith("ok ")


def test_a_config_file_that_cannot_be_used_fails_with_every_finding(tmp_path, data):
    write_source(tmp_path)
    write_run(tmp_path, epochs=0, project_name=None)
    found = checked(tmp_path, data)
    place = re.escape(str(tmp_path / "runs" / "a" / "config.yaml"))
    assert re.match(rf"FAIL config: project_name: missing.*\(from {place}\)", found["configuration"][0])
    assert re.match(rf"FAIL config: epochs: received 0, .*\(from {place}:\d+\)", found["configuration"][1])
    others = [line for name, lines in found.items() if name != "configuration" for line in lines]
    assert len(others) == len(CHECKS) - 1
    assert all(line.startswith("skip ") for line in others)


VALIDATION = "return self._generator(paths, labels, False), len(paths)"
TEST = "return self._test_gen(paths, labels, [r["
FINITE = "while True:\n                if shuffle"
YIELD = "yield self._read_image(paths[index]), labels[index], 1"
GIVEN = "yield tuple(np.array(part) for part in parts)"

DATA_FAULTS = {
    "too few": ("test samples", "dataset", 'rows]), len(paths)', 'rows]), 20',
                "FAIL data_loader: .*test data announced 20 samples, but has 15"),
    "too many": ("test samples", "dataset", 'rows]), len(paths)', 'rows]), 10',
                 "test data announced 10 samples, but has more"),
    "a tuple of four": ("training samples", "dataset", YIELD, YIELD + ", 2",
                        r"training sample 0 must be \(x, y, sample_weight\), but is a tuple of 4"),
    "a loader that fails": ("validation samples", "dataset", "return np.asarray(Image", "return np.asarry(Image",
                            r"create_validation_generator\(\) failed at .*dataset.py:\d+: AttributeError"),
    "types that differ": ("training samples", "dataset", "return np.asarray(Image.open(path))",
                          "return np.asarray(Image.open(path)).astype('uint8' if path.endswith('0.png') else 'int16')",
                          "warn data_loader: training samples have 2 forms"),
    "no constructor from None": ("build model_builder", "models", "def _set_defaults(self):",
                                 "def _set_defaults(self):\n            self.config.epochs",
                                 r"models.ModelBuilder\(None\) failed at .*models.py:\d+: AttributeError"),
    "validation is shuffled": ("validation order", "dataset", VALIDATION, VALIDATION.replace("False", "True"),
                               "two passes over the validation data differ from sample"),
    "ids are too few": ("validation order", "dataset", "[2]]", "[2]][1:]", "returned 24 ids for 25 validation samples"),
    "an id is there twice": ("test ids", "dataset", '[r["image name"] for r in rows]', '["same" for r in rows]',
                             "the test id 'same' occurs twice, again at sample 1"),
    "a split is part of another": ("splits", "dataset", 'joinpath("test")', 'joinpath("validation")',
                                   "warn .*: 25 of 25 test samples are validation samples, too; .*'image_0.png'"),
    "batches of another size": ("training batches", "preprocessing", "self.batch_size = config.batch_size",
                                "self.batch_size = 6", "training batches have 6 samples, but batch_size is 8"),
    "a number of batches that is wrong": ("validation batches", "preprocessing", "int((n % self.batch_size) > 0)", "0",
                                          "batchify announced 3 batches for 25 samples, but they fill 4"),
    "a sample is lost": ("training batches", "preprocessing", "parts = [], [], []",
                         "next(generator); parts = [], [], []",
                         r"of 60 training samples, \d+ are in no batch and \d+ in several; the first one is sample \d"),
    "values are not finite": ("training batches", "preprocessing", "/ self.normalize_by", "/ (image.max() * 0.0)",
                              "x of training batch 0 is not finite, first in its sample 0"),
    "a weight is negative": ("weights", "dataset", YIELD, YIELD[:-1] + "-1",
                             "a weight of training samples is -1.0, but weights must be finite and not negative"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_FAULTS)
@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
def test_faults_in_data(name, tmp_path, data):
    check, module, old, new, message = DATA_FAULTS[name]
    source = {"dataset": DATASET, "preprocessing": PREPROCESSING, "models": MODELS}[module]
    assert old in source
    write_source(tmp_path, **{module: source.replace(old, new)})
    folder = write_run(tmp_path)
    (line,) = checked(tmp_path, data, check)[check]
    assert re.search(message, line), line
    assert line.startswith("warn") or str(folder / "config.yaml") in line


MODEL_FAULTS = {
    "one label is out of range": ("labels", "models", "Dense(10", "Dense(9",
                                  "label.* 9.* the model has 9|the label 9 is no class: the model has 9"),
    "frozen": ("step", "models", "model.compile(", "model.trainable = False\n            model.compile(",
               "one step changes no weight"),
    "what cannot be learned": ("overfitting", "models", 'Dense(10, activation="softmax")',
                               'Dense(10, kernel_initializer="zeros", use_bias=False, activation=lambda x: '
                               'keras.ops.softmax(x * 1e-6))', "one batch cannot be learned: its loss goes from 2.303"),
    "a rate that is too small": ("overfitting", "models", 'optimizer="adam"',
                                 "optimizer=keras.optimizers.SGD(1e-7)", r"warn .*with Adam\(0.001\) it falls from"),
    "logits that are none": ("probabilities", "models", "Crossentropy()", "Crossentropy(from_logits=True)",
                             "warn .*from_logits=True, but the last layer ends in softmax: use one of them"),
    "a class that is not there": ("class weights", "models", "def get_compiled", "def get_class_weight(self):\n"
                                  "            return {0: 1.0, 10: 2.0}\n\n        def get_compiled",
                                  r"get_class_weight\(\): has the class 10, but classes are 0 to 9"),
    "a callback that watches nothing": ("callbacks", "models", "def get_compiled", "def get_callbacks(self):\n"
                                        "            return [keras.callbacks.EarlyStopping('val_accuracy')]\n\n"
                                        "        def get_compiled",
                                        "warn .*EarlyStopping monitors 'val_accuracy'; did you mean"),
    "two functions that return no number": ("functions", "evaluation",
                                            'return {"sparse categorical ce": self.get_cat_loss()}',
                                            'return {"a": lambda y, p: p, "b": lambda y, p: 1 / 0}',
                                            r"metrics\.a: returned .*return one number|"
                                            r"metrics\.b: failed on sample '0': ZeroDivisionError"),
}  # fmt: skip


SLOW = {"a callback that watches nothing", "a rate that is too small", "what cannot be learned"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] if n in SLOW else []) for n in MODEL_FAULTS])
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.filterwarnings("ignore:.*from_logits=True")
def test_faults_in_models_and_functions(name, tmp_path, data):
    check, module, old, new, message = MODEL_FAULTS[name]
    source = {"models": MODELS, "evaluation": EVALUATION}[module]
    assert old in source
    write_source(tmp_path, **{module: source.replace(old, new)})
    write_run(tmp_path)
    wanted = [check, "step"] if check == "callbacks" else [check]
    lines = checked(tmp_path, data, *wanted)[check]
    assert len(lines) == (2 if check == "functions" else 1)
    assert all(re.search(message, line) for line in lines), lines


@pytest.mark.full
def test_the_metric_of_the_export_is_one_of_an_epochs(tmp_path, data):
    write_source(tmp_path)
    write_run(tmp_path, export={"metric": "val_accuracy"})
    (line,) = checked(tmp_path, data, "export metric")["export metric"]
    assert re.match(
        r"FAIL config: export.metric: received 'val_accuracy', no epoch has .*\(metrics: loss, .*config.yaml:",
        line,
    )


def test_large_data_is_checked_in_part(tmp_path, data):
    write_source(tmp_path)
    write_run(tmp_path)
    found = checked(tmp_path, data, "training batches", "test batches", max_samples=10)
    assert found["training samples"][0].startswith("ok   data_loader: the first 10 of 60 training samples")
    assert found["training batches"][0].endswith("60 training samples fill 8 batches of 8; 16 samples were read")


@pytest.mark.full
def test_an_estimator_is_tried_on_a_few_batches(tmp_path, data):
    pytest.importorskip("skops")
    write_source(tmp_path, forest=FOREST)
    write_run(tmp_path, model_builder_class="forest.Builder", evaluator_class="forest.Judge", epochs=None)
    found = checked(tmp_path, data)
    assert re.search("GaussianNB is fitted to 8 of 8 batches, stored and loaded, and predicts", found["estimator"][0])
    assert "untrained: right" in found["functions"][0]
    assert not [line for lines in found.values() for line in lines if line.startswith("FAIL")]
    assert not {"step", "labels", "export"} & set(found), "checks of Keras models say nothing"


FOREST = """
    import numpy as np
    from sklearn.naive_bayes import GaussianNB

    from everstep.components import EvaluatorBase, GenericModelBuilderBase


    class Builder(GenericModelBuilderBase):
        def fit(self, train_data_gen, n_iter_train, val_data_gen, n_iter_val):
            batches = [next(train_data_gen) for _ in range(n_iter_train)]
            return GaussianNB().fit(*(np.concatenate([batch[part] for batch in batches]) for part in (0, 1)))

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Judge(EvaluatorBase):
        def get_eval_funcs(self):
            return {"right": lambda y_true, y_pred: float(y_true == y_pred)}
"""
