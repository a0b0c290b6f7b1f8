"""Numbers that contradict training, and rows whose ids may be wrong, are not published."""

import json

import pytest
from small_project import run, write

from everstep.components import Orchestrator
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*received `from_logits=True`"),
]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("everstep")]


def best(folder):
    return json.loads((folder / "exported" / "export.json").read_text())["val_loss"]


LOGITS = """
    class Builder(Builder):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""

MASKED = """
    class Loader(Loader):
        def sample(self, row):
            return np.arange(5) % (row + 2), np.arange(5) % 2

        def rows(self):  # without weights, which Keras cannot join with a mask on PyTorch
            return map(self.sample, range(10))

    class Builder(Builder):
        def model(self):
            embedded = keras.layers.Embedding(12, 3, mask_zero=True)
            dense = keras.layers.Dense(2, activation="softmax")
            return keras.Sequential([keras.Input((5,)), embedded, dense])
"""


@pytest.mark.backend
@pytest.mark.parametrize("source", [LOGITS, MASKED], ids=["logits", "masked"])
def test_the_models_own_row_is_what_training_said(tmp_path, quiet, caplog, source):
    """Keras's losses look behind a softmax, and at masks: predictions alone give another number."""
    folder = write(tmp_path, source)
    results = run(tmp_path)
    assert results["validation"]["model.evaluate"]["loss"] == pytest.approx(best(folder), rel=1e-5)
    assert warnings(caplog) == []


SCALED = """
    class Preprocessor(Preprocessor):
        def add_image_preprocess(self, generator):
            return ((x * self.scale, y, w) for x, y, w in generator)

        def _load_params(self, config):
            self.scale = config.preprocessor.scale
"""


@pytest.mark.full
def test_an_evaluation_with_other_settings_does_not_replace_what_contradicts_it(tmp_path, quiet, caplog):
    folder = write(tmp_path, SCALED, preprocessor={"scale": 1})
    published = run(tmp_path)
    files = [folder / "reports" / "metrics.json", folder / "validation_report.csv"]
    before = [path.read_bytes() for path in files]

    write(tmp_path, SCALED, preprocessor={"scale": 9}, evaluator={"any": 1})
    again = Orchestrator("a", tmp_path, verbose=False)
    with pytest.raises(TrainingError) as refused:
        again.evaluate()
    text = str(refused.value)
    assert text.startswith("val_loss of the exported model is ")
    assert f"but was {best(folder):.6g} in training (epoch 1)" in text
    assert "settings have changed (preprocessor.scale: 1 -> 9)" in text
    assert "--allow-change preprocessor.scale" in text
    assert warnings(caplog) == ["the settings have changed since training: preprocessor.scale: 1 -> 9"]
    assert [path.read_bytes() for path in files] == before

    results = Orchestrator("a", tmp_path, verbose=False, allow_change=["preprocessor.scale"]).evaluate()
    assert results["validation"] != published["validation"]
    stored = json.loads(files[0].read_text())
    assert stored["evaluation"] == 1
    assert [note.split(" ")[0:2] for note in stored["notes"]] == [["the", "settings"], ["val_loss", "of"]]

    write(tmp_path, SCALED, preprocessor={"scale": 1}, evaluator={"any": 1})
    assert Orchestrator("a", tmp_path, verbose=False).evaluate() == published
    assert json.loads(files[0].read_text())["notes"] == []


@pytest.mark.full
def test_the_keys_that_an_evaluation_names_are_known_to_training(tmp_path, quiet):
    write(tmp_path, SCALED, preprocessor={"scale": 1})
    run(tmp_path, allow_change=["code"])
    write(tmp_path, SCALED, preprocessor={"scale": 2}, epochs=2)
    with raises_problem(key="preprocessor.scale"):
        run(tmp_path)
    run(tmp_path, allow_change=["preprocessor.scale", "code"])


OTHER_SAMPLES = """
    class Loader(Loader):
        def sample(self, row):
            return np.full(4, row), row % 2
"""


@pytest.mark.full
def test_edited_code_is_said_and_does_not_replace_what_contradicts_it(tmp_path, quiet, caplog):
    folder = write(tmp_path)
    published = run(tmp_path)
    write(tmp_path, "\n    # a remark\n")
    assert run(tmp_path) == published
    (line,) = warnings(caplog)
    assert line.startswith("the code has changed since the export: src/odd.py")
    caplog.clear()

    write(
        tmp_path,
        "    class Loader(Loader):\n        def sample(self, row):\n            return np.full(4, row), row % 2",
    )
    with raises_problem(
        TrainingError, reason=r"val_loss .*the code has changed \(src/odd.py", remedy="--allow-change code"
    ):
        run(tmp_path)
    assert json.loads((folder / "reports" / "metrics.json").read_text())["validation"] == published["validation"]
    assert run(tmp_path, allow_change=["code"])["validation"] != published["validation"]


def test_edited_code_is_said_when_a_run_resumes_and_every_attempt_keeps_its_own(tmp_path, quiet, capfd):
    folder = write(tmp_path)
    Orchestrator("a", tmp_path).run()
    assert "the code has changed" not in capfd.readouterr().err
    write(tmp_path, "\n    # a remark\n", epochs=2)
    Orchestrator("a", tmp_path).run()
    assert capfd.readouterr().err.count("the code has changed since the last attempt: src/odd.py\n") == 1
    record = json.loads((folder / "run.json").read_text())
    codes = [attempt["code"]["sources"] for attempt in record["attempts"]]
    assert len(set(codes)) == 2
    assert record["code"]["sources"] == codes[-1]


SHUFFLED = """
    class Loader(Loader):
        def create_validation_generator(self):
            rows = list(self.rows())
            np.random.shuffle(rows)
            return iter(rows), 10
"""

LATE = """
    passes = itertools.count()

    class Loader(Loader):
        def create_validation_generator(self):
            return self.turned(list(self.rows())), 10

        def turned(self, rows):
            yield from rows[:8]
            yield from (rows[8:] if next(passes) % 2 else rows[:7:-1])
"""

NOISY = """
    class Loader(Loader):
        def create_validation_generator(self):
            return ((x + np.random.normal(size=4), y, w) for x, y, w in self.rows()), 10
"""


def test_shuffled_validation_data_is_refused_before_training(tmp_path, quiet):
    folder = write(tmp_path, SHUFFLED)
    reason = "odd.Loader: .*validation data comes in another order"
    with raises_problem(key="data_loader_class", reason=reason) as refused:
        run(tmp_path)
    assert "config.yaml" in refused.value.origin
    assert not (folder / "training").exists()


def test_validation_data_whose_order_changes_later_gets_no_ids(tmp_path, quiet):
    folder = write(tmp_path, LATE)
    with raises_problem(
        TrainingError, key="data_loader_class", reason="no row is written: .*create_validation_gen.* first at sample 8,"
    ):
        run(tmp_path)
    assert not (folder / "validation_report.csv").exists()
    assert not (folder / "reports").exists() or not list((folder / "reports").glob("*.csv"))
    write(tmp_path, "")
    run(tmp_path, allow_change=["code"])
    assert (folder / "validation_report.csv").exists()


def test_noise_on_validation_inputs_is_no_other_order(tmp_path, quiet, caplog):
    folder = write(tmp_path, NOISY, epochs=2)
    run(tmp_path)
    assert (folder / "validation_report.csv").exists()
    (line,) = warnings(caplog)
    assert line.startswith("val_loss of the exported model is "), "other noise, another number: a warning, and no error"
