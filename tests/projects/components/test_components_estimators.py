"""Estimators in the manner of scikit-learn: fitted, saved without pickle, evaluated sample by sample."""

import csv

import numpy as np
import pytest
from components_project import SIZES, write_run, write_source

from everstep.components import Orchestrator
from everstep.config.allowed import allows_pickle
from everstep.errors import TrainingError, UsageError
from everstep.projects.components.generic_trainer import load_estimator, save_estimator
from everstep.testing.problems import raises_problem

pytest.importorskip("skops")

FOREST = """
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    from everstep.components import EvaluatorBase, GenericModelBuilderBase


    class Builder(GenericModelBuilderBase):
        def fit(self, train_data_gen, n_iter_train, val_data_gen, n_iter_val):
            batches = [next(train_data_gen) for _ in range(n_iter_train)]
            x, y = (np.concatenate([batch[part] for batch in batches]) for part in (0, 1))
            assert len(x) == 60 and len(next(val_data_gen)[0]) == 8
            return LogisticRegression(max_iter=20, tol=0.1).fit(x, y)

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Judge(EvaluatorBase):
        def get_eval_funcs(self):
            return {"right": lambda y_true, y_pred: float(y_true == y_pred)}
"""


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # scikit-learn on its way to the optimum
def test_an_estimator_from_config_to_reports(tmp_path, data, untracked):
    write_source(tmp_path, forest=FOREST)
    changes = {"model_builder_class": "forest.Builder", "evaluator_class": "forest.Judge", "epochs": None}
    folder = write_run(tmp_path, **changes)
    results = Orchestrator("a", tmp_path, data).run()
    assert (folder / "exported" / "model.skops").is_file()
    assert results["test"]["model.evaluate"]["score"] == pytest.approx(results["test"]["eval_funcs"]["right"])
    with open(folder / "eval_report.csv", newline="") as file:
        table = list(csv.reader(file))
    assert [row[0] for row in table[1:]] == [f"image_{i}.png" for i in range(SIZES["test"])]
    stamp = (folder / "exported" / "model.skops").stat().st_mtime_ns
    assert Orchestrator("a", tmp_path, data).run() == results
    assert (folder / "exported" / "model.skops").stat().st_mtime_ns == stamp


class Homemade:
    def predict(self, x):
        return np.zeros(len(x))


@pytest.mark.full
def test_pickle_needs_the_projects_word(tmp_path):
    remedy = "allow-pickle = true in .*pyproject"
    with raises_problem(TrainingError, reason="Homemade cannot be saved with skops", remedy=remedy):
        save_estimator(Homemade(), tmp_path, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.everstep]\nallow-pickle = true\n")
    folder = tmp_path / "allowed"
    folder.mkdir()
    assert save_estimator(Homemade(), folder, tmp_path) == "model.joblib"
    assert load_estimator(folder, tmp_path).predict([1]).tolist() == [0]
    (tmp_path / "pyproject.toml").write_text("[tool.everstep]\nallow-pickle = false\n")
    with raises_problem(reason="can run any code when it is loaded"):
        load_estimator(folder, tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.everstep]\nallow-pickle = "yes"\n')
    with pytest.raises(UsageError) as refused:
        allows_pickle(tmp_path)
    assert (refused.value.key, refused.value.received) == ("[tool.everstep] allow-pickle", "yes")
