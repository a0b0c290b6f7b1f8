"""Columns of predictions: numbers of classes, and their names where the record has them."""

import csv

import numpy as np
import pytest

from everstep.trained.outputs import OutputColumns, open_output

SHARES = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
NAMES = ["bird", "cat", 'fish, "small"']


def columns(classes, shares=SHARES, probabilities=True):
    record = {"metrics": {}, **({} if classes is None else {"classes": classes})}
    return OutputColumns(None, "softmax", record, probabilities).columns({"output": shares})


def test_names_beside_numbers():
    found = columns(NAMES)
    assert list(found) == ["prediction", "label", "probability", *(f"probability_{name}" for name in NAMES)]
    assert found["prediction"].tolist() == [1, 0]
    assert found["label"].tolist() == ["cat", "bird"]


@pytest.mark.parametrize("classes", [None, [], ["a", "b"], ["a", "a", "b"]], ids=str)
def test_names_that_do_not_fit_are_not_used(classes):
    assert list(columns(classes)) == ["prediction", "probability", *(f"probability_{index}" for index in range(3))]


def test_one_output_for_two_classes():
    found = OutputColumns(None, "sigmoid", {"classes": ["no", "yes"]}, True).columns({"y": np.array([[0.25], [0.75]])})
    assert found["label"].tolist() == ["no", "yes"]
    assert found["probability_no"].tolist() == [0.75, 0.25]


def test_any_name_in_the_header_of_a_csv_file(tmp_path):
    with open_output(tmp_path / "out.csv") as write:
        write({"id": ["x"], **{name: values[:1] for name, values in columns(NAMES).items()}})
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["label"], row['probability_fish, "small"']) == ("cat", "0.2")


def test_a_csv_file_has_the_digits_of_its_numbers_and_quotes_where_they_are_needed(tmp_path):
    outputs = np.random.default_rng(0).dirichlet([1.0, 1.0], size=200).astype("float32")
    outputs[0] = [1.5e-7, 1 - 1.5e-7]
    found = OutputColumns("classification", "softmax", None, True).columns({"y": outputs})
    with open_output(tmp_path / "out.csv") as write:
        write({"name": ["plain", "a,b", *["c\rd"] * 198], 'odd, "name"': [1] * 200, **found})
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == 'name,"odd, ""name""",prediction,probability,probability_0,probability_1'
    assert lines[1].startswith("plain,1,1,")
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows[:3]] == ["plain", "a,b", "c\rd"]
    texts = [row["probability_0"] for row in rows]
    np.testing.assert_array_equal(np.array(texts, "float32"), outputs[:, 0], "round trip")
    assert max(len(text.partition("e")[0].replace(".", "").lstrip("0")) for text in texts) <= 9
