"""Models that are unusual, or wrong in a way that shows late: inputs by name, several outputs, steps of their own."""

import re
import shutil

import numpy as np
import pytest
from small_project import build_small_components, preflight, run, trained_by_itself, write
from test_components_check import checked

from everstep.data.wrappers import class_weighted
from everstep.errors import TrainingError, UsageError
from everstep.projects.components.data_splits import create_split
from everstep.projects.components.error_context import error_context
from everstep.projects.components.export import write_export
from everstep.projects.components.exported_model import input_dtypes
from everstep.projects.components.keras_trainer import compiled_model
from everstep.projects.components.model_metrics import R2, CompiledMetrics, MeanScore
from everstep.projects.components.run_folder import open_run
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory):
    """A project with a run of two epochs, not exported yet."""
    root = tmp_path_factory.mktemp("trained")
    write(root, epochs=2)
    trained_by_itself(root)
    return root


@pytest.mark.parametrize("allowed", [(), ("task.project.export.mode",)])
def test_what_the_best_epoch_is_cannot_change(trained_project, tmp_path, quiet, allowed):
    root = shutil.copytree(trained_project, tmp_path / "copy", symlinks=True)
    write(root, epochs=3, export={"metric": "val_loss", "mode": "max"})
    with raises_problem(key="export.mode", received="max", reason="only the best epoch by 'min' was kept") as refused:
        run(root, allow_change=allowed)
    error = refused.value
    assert (error.key, error.received) == ("export.mode", "max")
    assert "start a run with another name" in error.remedy
    assert error.origin.startswith(f"{root / 'runs' / 'a' / 'config.yaml'}:")
    assert "allow" not in str(error)


def test_a_flag_alone_refuses_nothing_and_fewer_epochs_are_refused(trained_project, tmp_path, quiet):
    root = shutil.copytree(trained_project, tmp_path / "copy", symlinks=True)
    write(root, epochs=1)
    with raises_problem(key="epochs", received=1, reason="but 2 are trained already") as refused:
        run(root)
    assert refused.value.origin.startswith(f"{root / 'runs' / 'a' / 'config.yaml'}:")
    assert not (root / "runs" / "a" / "exported").exists()
    write(root, epochs=3)
    assert trained_by_itself(root, ["task.project.export.mode"]).epoch == [0, 1, 2]


def test_r2_is_that_of_all_samples():
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    y = random.normal(size=(21, 2)) * (1, 100) + (1e6, 0)
    y_pred = y + random.normal(size=y.shape) * (0.5, 80)
    for labels, answers in ((y, y_pred), (y[:, 0], y_pred[:, 0])):
        explained = R2()
        for part in (slice(0, 8), slice(8, 20), slice(20, 21)):
            explained.add(labels[part], answers[part])
        assert explained.result() == pytest.approx(metrics.r2_score(labels, answers), rel=1e-6)


def test_scores_of_regressors_inside_others():
    linear, pipeline = pytest.importorskip("sklearn.linear_model"), pytest.importorskip("sklearn.pipeline")
    search = pytest.importorskip("sklearn.model_selection").GridSearchCV
    random = np.random.default_rng(0)
    x = random.normal(size=(21, 3))
    y = x @ (1, 2, 3) + random.normal(size=21)
    joined = pipeline.make_pipeline(linear.Ridge())
    grid, folds = {"ridge__alpha": [0.1, 1]}, {"cv": 2}
    squares = search(joined, grid, scoring="neg_mean_squared_error", **folds)
    classes = (y > 0).astype(int)
    for estimator, labels in [
        (linear.Ridge(), y), (joined, y), (search(joined, grid, **folds), y), (search(joined, grid, scoring="r2"), y),
        (squares, y), (linear.LogisticRegression(), classes),
    ]:  # fmt: skip
        fitted, score = estimator.fit(x, labels), MeanScore(estimator)
        for part in (slice(0, 8), slice(8, 20), slice(20, 21)):
            score.add(x[part], labels[part], None, fitted.predict(x[part]))
        assert score.result()["score"] == pytest.approx(fitted.score(x, labels)), estimator


NAMED = """
    class Loader(Loader):
        def sample(self, row):
            return {"area": np.full(3, row / 10), "zone": np.array(row)}, row % 2

    class Builder(Builder):
        def model(self):
            zone, area = keras.Input((), name="zone", dtype="int32"), keras.Input((3,), name="area")
            joined = keras.layers.Concatenate()([keras.layers.Embedding(10, 2)(zone), area])
            return keras.Model([zone, area], keras.layers.Dense(2, activation="softmax")(joined))
"""


@pytest.mark.backend
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
def test_inputs_are_found_by_their_names(tmp_path):
    """The model lists them in another order than a dictionary has them."""
    made = build_small_components(tmp_path, NAMED)
    x = next(create_split(made, "validation").batches())[0]
    assert input_dtypes(compiled_model(made), x) == ["float32", "int32"]
    (line,) = checked(tmp_path, None, "export")["export"]
    assert re.search("can be exported and loaded as a (SavedModel|PyTorch program)", line)


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match")
def test_a_run_with_inputs_by_name(tmp_path, quiet):
    write(tmp_path, NAMED)
    assert run(tmp_path)["test"]["model.evaluate"]["loss"] > 0


def test_colours_are_no_part_of_a_message(tmp_path):
    made = build_small_components(tmp_path)
    with pytest.raises(UsageError) as refused, error_context("it", tmp_path):
        raise ValueError("\x1b[1m\x1b[32mred\x1b[0m")
    assert str(refused.value) == "it failed: ValueError: red"

    def fail(folder):
        raise ValueError("a layer \x1b[1m'dense'\x1b[0m\nfails")

    with raises_problem(TrainingError, reason="a layer 'dense' fails"):
        write_export(open_run("a", tmp_path, None).folder, made.config, fail)


TWO = """
    class Loader(Loader):
        def sample(self, row):
            return np.full(4, row / 10), {"one": row % 2, "two": row % 2}

    class Builder(Builder):
        def model(self):
            x = keras.Input((4,))
            return keras.Model(x, {k: keras.layers.Dense(2, "softmax", name=k)(x) for k in ("one", "two")})

        def get_class_weight(self):
            return {0: 1.0, 1: 2.0}
"""


def test_class_weights_need_one_output(tmp_path):
    message = "odd.Builder: class_weight: needs a model with one output"
    with raises_problem(key="model_builder_class", reason=message):
        preflight(tmp_path, TWO)
    (line,) = checked(tmp_path, None, "class weights")["class weights"]
    assert line.startswith(f"FAIL model_builder: model_builder_class: {message}")


def test_class_weights_join_others_and_leave_unknown_classes():
    weigh = class_weighted({0: 3.0, 1: 2.0})
    labels = np.array([0, 1, -1, 7])
    assert weigh((0, labels))[2].tolist() == [3, 2, 1, 1]
    assert weigh((0, labels, np.full((4, 1), 10.0)))[2].tolist() == [[30], [20], [10], [10]]
    with raises_problem(key="class_weight", reason=r"one label for each sample, not labels of shape \(2, 3, 4\)"):
        weigh((0, np.zeros((2, 3, 4))))


OWN_STEP = """
    class Own(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.kept = keras.metrics.Mean(name="kept")

        def measured(self, y, y_pred):
            loss = keras.ops.mean(keras.ops.take(y_pred[:, 0], keras.ops.arange(keras.ops.shape(y)[0])))
            self.kept.update_state(loss)
            return {"loss": loss, "kept": self.kept.result(), "other": 2 * loss}

        if keras.backend.backend() == "jax":
            def test_step(self, state, data):
                trained, others, kept = state
                y_pred, others = self.stateless_call(trained, others, data[0], training=False)
                with keras.StatelessScope(zip(self.metrics_variables, kept)) as scope:
                    logs = self.measured(data[1], y_pred)
                return logs, (trained, others, [scope.get_current_value(v) for v in self.metrics_variables])
        else:
            def test_step(self, data):
                return self.measured(data[1], self(data[0], training=False))

    class Builder(Builder):
        def model(self):
            return Own([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
"""


@pytest.mark.backend
def test_what_an_own_test_step_says_of_a_batch_is_averaged(tmp_path):
    made = build_small_components(tmp_path, OWN_STEP)
    model = compiled_model(made)
    metrics, batches = CompiledMetrics(model), list(create_split(made, "validation").batches())
    for x, y, _ in batches:
        metrics.add(x, y, None, None)
    means = [float(np.mean(model.predict_on_batch(x)[:, 0])) for x, _, _ in batches]
    found = metrics.result()
    assert found["loss"] == pytest.approx(np.average(means, weights=[4, 4, 2]), rel=1e-5)
    assert found["other"] == pytest.approx(2 * found["loss"], rel=1e-5)
    assert found["kept"] == pytest.approx(np.mean(means), rel=1e-5), "as the model's metric has it"


@pytest.mark.parametrize(("metric", "status"), [("val_loss", "warn"), ("val_kept", "ok  ")])
def test_an_export_metric_of_the_last_batch_alone_is_told(tmp_path, metric, status):
    write(tmp_path, OWN_STEP, export={"metric": metric})
    (line,) = checked(tmp_path, None, "export metric")["export metric"]
    assert line.startswith(f"{status} config: ")
    assert ("test_step returns 'loss' of the last batch only" in line) == (status == "warn")
