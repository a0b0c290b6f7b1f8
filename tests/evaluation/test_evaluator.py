"""The evaluator's rows: every sample once, in order, for any batch sizes."""

import csv
import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.evaluation import Evaluator, SampleBatch, SampleMetric, sample_table, vectorized
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

FILES = ["test.csv", "test.json", "test.parquet", "test_summary.csv"]


def error(y_true, y_pred):
    return abs(float(y_true) - float(y_pred))


@vectorized
def squared(y_true, y_pred):
    return (y_true - y_pred) ** 2


METRICS = {"error": error, "squared": squared}


def numbers(n):
    random = np.random.default_rng(n)
    return random.normal(size=n), random.normal(size=n)


def cut(y_true, y_pred, size, ids=None):
    for first in range(0, len(y_true), size):
        part = slice(first, first + size)
        yield SampleBatch(None if ids is None else ids[part], y_true[part], y_pred[part])


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 70), size=st.integers(1, 80), chunk=st.integers(1, 40), named=st.booleans())
def test_every_sample_has_one_row_in_order_for_any_batch_sizes(tmp_path, monkeypatch, n, size, chunk, named):
    monkeypatch.setattr(sample_table, "CHUNK", chunk)
    y_true, y_pred = numbers(n)
    ids = [f"image_{n - row}.jpg" for row in range(n)] if named else None
    evaluation = Evaluator(METRICS).run(cut(y_true, y_pred, size, ids), tmp_path, "test")
    header, *body = rows(tmp_path / "test.csv")
    assert header == ["", "error", "squared"]
    assert [row[0] for row in body] == (ids or [str(row) for row in range(n)])
    assert [float(row[1]) for row in body] == [error(t, p) for t, p in zip(y_true, y_pred, strict=True)]
    frame = pd.read_parquet(tmp_path / "test.parquet")
    assert frame["id"].tolist() == [row[0] for row in body]
    assert frame["squared"].tolist() == [float(row[2]) for row in body] == ((y_true - y_pred) ** 2).tolist()
    assert frame["label"].tolist() == y_true.tolist()
    assert evaluation.rows == n
    assert evaluation.means["error"] == pytest.approx(np.abs(y_true - y_pred).mean())


def test_files_do_not_depend_on_batch_sizes(tmp_path):
    y_true, y_pred = numbers(500)
    for folder, size in (("one", 500), ("many", 7), ("again", 7)):
        Evaluator(METRICS).run(cut(y_true, y_pred, size), tmp_path / folder, "test")
        assert sorted(p.name for p in (tmp_path / folder).iterdir()) == FILES
    for name in FILES:
        one, many, again = ((tmp_path / folder / name).read_bytes() for folder in ("one", "many", "again"))
        assert one == many == again, name


def test_the_summary_equals_that_of_pandas(tmp_path):
    values = np.array([0.25, np.nan, 3.0, -1.5, 7.125])
    metrics = {"some": lambda y_true, y_pred: y_true, "none": lambda y_true, y_pred: math.nan}
    evaluation = Evaluator(metrics, kind="values").run([(None, values, values)], tmp_path, "test")
    frame = pd.read_csv(tmp_path / "test.csv", index_col=0)
    summary = pd.read_csv(tmp_path / "test_summary.csv", index_col=0)
    pd.testing.assert_frame_equal(summary, frame.describe(), check_exact=False, rtol=1e-12)
    assert rows(tmp_path / "test.csv")[2] == ["1", "nan", "nan"]
    assert evaluation.counts == {"some": 4, "none": 0}
    assert math.isnan(evaluation.means["none"])


def test_the_json_file_has_means_and_histograms(tmp_path):
    y_true, y_pred = numbers(300)
    seen = []
    overall: dict[str, float] = {}

    def batches():
        yield from cut(y_true, y_pred, 100)
        overall.update(loss=0.5, broken=math.nan)

    metrics = [SampleMetric("error", error, description="how far", better="lower")]
    Evaluator(metrics).run(batches(), tmp_path, "test", overall=overall, progress=seen.append)
    page = json.loads((tmp_path / "test.json").read_text())
    assert (page["format"], page["split"], page["kind"], page["rows"]) == (1, "test", "regression", 300)
    assert (page["classes"], page["confusion"], page["overall"]) == (None, None, {"loss": 0.5, "broken": None})
    (metric,) = page["metrics"]
    errors = np.abs(y_true - y_pred)
    assert (metric["name"], metric["description"], metric["better"], metric["count"]) == (
        "error",
        "how far",
        "lower",
        300,
    )
    assert metric["mean"] == pytest.approx(errors.mean())
    counts, edges = np.histogram(errors, 50)
    assert metric["histogram"]["counts"] == counts.tolist()
    np.testing.assert_allclose(metric["histogram"]["edges"], edges)
    assert seen == [100, 200, 300]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([b"image_0.jpg", b"image_1.jpg"], ["image_0.jpg", "image_1.jpg"]),
        (np.array([b"image_0.jpg", b"\xff"]), ["image_0.jpg", "\\xff"]),
        (np.array([b"a", b"b"], object), ["a", "b"]),
        (np.array([["a"], ["b"]]), ["a", "b"]),
        (np.array([7, 8]), ["7", "8"]),
        (("a,b", 'say "c"\n'), ["a,b", 'say "c"\n']),
        ([np.str_("a"), np.int64(3)], ["a", "3"]),
    ],
)
def test_ids_become_text(tmp_path, ids, expected):
    Evaluator(METRICS).run([(ids, *numbers(2))], tmp_path, "test")
    assert [row[0] for row in rows(tmp_path / "test.csv")[1:]] == expected
    assert pd.read_parquet(tmp_path / "test.parquet")["id"].tolist() == expected


@pytest.mark.parametrize(
    ("batches", "fields"),
    [
        ([(["a"], *numbers(2))], {"key": "ids", "received": ["a"], "reason": "has 2 samples and 1 ids"}),
        ([(b"image_0.jpg", *numbers(3))], {"key": "ids", "reason": "has 3 samples and 1 ids"}),
        ([(None, *numbers(2)), (["c"], *numbers(1))], {"key": "ids", "reason": "from sample 2 on"}),
        ([([None, "b"], *numbers(2))], {"key": "ids", "received": None}),
        ([([{}, "b"], *numbers(2))], {"reason": "one number or text"}),
        (
            [(None, np.zeros(3), np.zeros(2))],
            {"key": "y_true", "reason": "after sample 0 has 3 labels for 2 predictions"},
        ),
        (
            [(None, np.float64(1), np.float64(1))],
            {"key": "y_pred", "received": "ndarray of shape ()", "reason": "batch axis"},
        ),
        ([(np.zeros(2), np.zeros(2))], {"key": "batches", "reason": "tuple of 2"}),
        ([], {"key": "batches", "reason": "gave no samples"}),
        ([(None, *numbers(0))], {"key": "batches", "reason": "gave no samples"}),
        (
            [(None, *numbers(2), None, {"camera": ["left"]})],
            {"key": "columns.camera", "reason": "has 1 values for 2 samples"},
        ),
        ([(None, *numbers(1), None, {"error": [1]})], {"key": "columns", "received": "error", "reason": "is a metric"}),
        ([(None, *numbers(1), None, {"label": [1]})], {"key": "columns", "received": "label", "reason": "is a column"}),
        ([(None, *numbers(1), None, {"x": [1]}), (None, *numbers(1))], {"key": "columns", "reason": "the columns are"}),
        (
            [(None, *numbers(1)), (None, *numbers(1), None, {"x": [1]})],
            {"key": "columns", "reason": r"the columns are \['x'\], before they were \[\]"},
        ),
        ([(None, *numbers(2), None, {"x": [1, "a"]})], {"key": "columns.x", "reason": "has values of different types"}),
        ([(None, *numbers(1), None, {"x": [np.zeros(2)]})], {"reason": "one number or text"}),
    ],
)
def test_batches_that_do_not_fit_are_refused_and_leave_no_files(tmp_path, batches, fields):
    with raises_problem(**fields):
        Evaluator(METRICS).run(batches, tmp_path, "test")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_the_data_keep_names_and_types(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_table, "CHUNK", 2)
    first = {
        "camera": [b"left", "right"],
        "age": np.array([30, 41]),
        "dark": [True, False],
        "lux": [1, 2.5],
        "a.b": [None, None],
    }
    second = {"camera": ["left", None], "age": [3, None], "dark": [True, None], "lux": [1, 2], "a.b": ["x", "y"]}
    batches = [(None, *numbers(2), None, first), (None, *numbers(2), None, second)]
    Evaluator({"a": error, "a.c": error}).run(batches, tmp_path, "test")
    found = pq.read_table(tmp_path / "test.parquet")
    types = {field.name: str(field.type) for field in found.schema}
    assert types | {"camera": "string", "age": "int64", "dark": "bool", "lux": "double", "a.b": "string"} == types
    assert found["camera"].to_pylist() == ["left", "right", "left", None]
    assert found["a.b"].to_pylist() == [None, None, "x", "y"]
    assert rows(tmp_path / "test.csv")[0] == ["", "a", "a.c"]


def test_a_column_that_changes_its_type_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_table, "CHUNK", 1)
    for values, message in [((1, "a"), "int64 at first and is string"), ((2**60 + 1, 0.5), "int64 at first|double")]:
        batches = [(None, *numbers(1), None, {"x": [value]}) for value in values]
        with raises_problem(key="columns.x", reason=f"was .*{message}"):
            Evaluator(METRICS).run(batches, tmp_path, "test")
        assert list(tmp_path.iterdir()) == []


def test_integers_are_rewritten_as_floats_when_fractions_follow(tmp_path, monkeypatch):
    """Rows keep their order, and other columns their types."""
    monkeypatch.setattr(sample_table, "CHUNK", 2)
    ages, years = [1, None, 3, 4, 5.5, 6, 7], [1, 2, 3, 4, 5, 6, 7.25]
    rest = list(range(7))
    columns = [{"age": [a], "year": [y], "rest": [r]} for a, y, r in zip(ages, years, rest, strict=True)]
    Evaluator(METRICS).run([([f"row {r}"], *numbers(1), None, c) for r, c in enumerate(columns)], tmp_path, "test")
    found = pq.read_table(tmp_path / "test.parquet")
    assert [str(found.schema.field(name).type) for name in ("age", "year", "rest")] == ["double", "double", "int64"]
    assert found["id"].to_pylist() == [f"row {row}" for row in rest]
    assert (found["age"].to_pylist(), found["year"].to_pylist(), found["rest"].to_pylist()) == (ages, years, rest)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_failure_keeps_the_earlier_files(tmp_path):
    Evaluator(METRICS).run([(None, *numbers(3))], tmp_path, "test")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with raises_problem(key="metrics.bad", reason="inf"):
        Evaluator({"bad": lambda y_true, y_pred: math.inf}).run([(None, *numbers(3))], tmp_path, "test")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_temporary_files_of_a_killed_evaluation_are_removed(tmp_path):
    for name in (".everstep-0123456789ab-test.csv", ".everstep-0123456789ab-validation.csv"):
        (tmp_path / name).write_text("half")
    Evaluator(METRICS).run([(None, *numbers(3))], tmp_path, "test")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".everstep-0123456789ab-validation.csv", *FILES]


def test_a_split_must_be_a_file_name(tmp_path):
    with raises_problem(key="split", received="../test"):
        Evaluator(METRICS).run([(None, *numbers(1))], tmp_path, "../test")


def test_repeated_ids_and_missing_numbers_are_warnings(tmp_path, caplog):
    metrics = {"some": lambda y_true, y_pred: math.nan if y_true > 1 else 0.0}
    Evaluator(metrics).run([(["a", "105", "105"], np.arange(3.0), np.zeros(3))], tmp_path, "test")
    assert "1 of 3 samples have the id of an earlier one" in caplog.text
    assert "metric 'some' has no number for 1 of 3 samples" in caplog.text


def test_empty_batches_are_ignored(tmp_path):
    empty = (None, *numbers(0))
    Evaluator(METRICS).run([empty, (["a"], *numbers(1), None, {"x": [1]}), empty], tmp_path, "test")
    assert [row[0] for row in rows(tmp_path / "test.csv")] == ["", "a"]


def test_rows_are_written_without_metrics(tmp_path):
    evaluation = Evaluator([]).run([(["a", "b"], *numbers(2))], tmp_path, "test")
    assert (evaluation.rows, evaluation.means) == (2, {})
    assert rows(tmp_path / "test.csv") == [[""], ["a"], ["b"]]


def test_nested_labels_and_predictions(tmp_path):
    y = {"height": np.array([1.0, 2.0]), "width": np.array([3.0, 5.0])}
    metric = {"area": lambda y_true, y_pred: y_pred["height"] * y_pred["width"]}
    evaluation = Evaluator(metric).run([(["a", "b"], y, y)], tmp_path, "test")
    assert evaluation.kind == "values"
    assert rows(tmp_path / "test.csv")[1:] == [["a", "3.0"], ["b", "10.0"]]


def test_extreme_numbers_have_a_histogram(tmp_path):
    for values in ([-1.7e308, 1.7e308], [5e-324, 0.0], [1e300, 1e300], [0.0, 0.0]):
        y = np.array(values)
        Evaluator({"v": lambda y_true, y_pred: y_true}, kind="values").run([(None, y, y)], tmp_path, "test")
        histogram = json.loads((tmp_path / "test.json").read_text())["metrics"][0]["histogram"]
        assert len(histogram["edges"]) == 51
        assert sum(histogram["counts"]) == 2


@pytest.mark.backend
def test_tensors_of_the_backend(tmp_path):
    import keras

    y_true, y_pred = (keras.ops.convert_to_tensor(values, "float32") for values in numbers(4))
    half = keras.ops.cast(y_pred, "bfloat16")
    Evaluator(METRICS).run([(None, y_true, y_pred), (None, y_true, half)], tmp_path, "test")
    assert len(rows(tmp_path / "test.csv")) == 9
