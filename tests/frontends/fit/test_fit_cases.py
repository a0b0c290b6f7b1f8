"""The cases that compare `everstep.fit` with `model.fit`: declared well, some of them run, the pages up to date."""

import re

import keras
import pytest
from tools.fit_cases import pages, results
from tools.fit_cases.cases import CASES
from tools.fit_cases.compare import compare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_export")]

BACKEND = keras.backend.backend()


def explained():
    """The first cells of the tables of the page, without what they link to."""
    return set(re.findall(r"^\| (.+?) \| ", pages.SUMMARY.read_text("utf-8"), re.MULTILINE))


def test_there_are_many_cases_for_each_backend():
    for backend in results.BACKENDS:
        assert sum(backend in case.backends for case in CASES.values()) >= 150


def test_every_reason_is_a_row_of_the_page():
    rows = explained()
    for case in CASES.values():
        assert set(case.differs) <= set(case.backends)
        assert set(case.differs.values()) <= rows, case.title


def test_the_pages_are_what_the_results_say():
    """To be written anew: python -m tools.fit_cases --pages."""
    found = results.read_all()
    for page, text in ((pages.SUMMARY, pages.summary(found)), (pages.TABLE, pages.table(found))):
        assert pages.with_generated(page.read_text("utf-8"), text) == page.read_text("utf-8")


QUICK = [
    "layers: Dense",
    "models: functional, two inputs and two outputs",
    "losses: Huber",
    "optimizers: accumulated gradients",
    "data: a generator over several epochs",
    "data: a PyDataset with on_epoch_end",
    "arguments: validation_freq, a list",
    "callbacks: each call of batches",
    "calls: a second call continues",
    "steps: train_step and test_step",
]


@pytest.mark.backend
@pytest.mark.parametrize("title", QUICK)
def test_a_case_ends_as_it_says(title):
    case = CASES[title]
    row = compare(case) | {"differs": case.differs.get(BACKEND, "")}
    assert not results.surprise(row), row
    assert "error of fit" not in row
    assert set(row["seconds"]) == {results.FIT, results.OURS, results.KEPT}


@pytest.mark.backend
@pytest.mark.parametrize(
    ("title", "on_jax"),
    [
        ("programs: texts, a mixture of experts", results.BOTH),
        ("callbacks: the weights after each batch", results.OTHER),
    ],
)
def test_cases_that_keras_does_not_train_on_jax(title, on_jax):
    """The router of keras.io's Switch Transformer draws without a seed, which we refuse as well; weights we show."""
    case = CASES[title]
    row = compare(case) | {"differs": case.differs.get(BACKEND, "")}
    allowed = {on_jax} if BACKEND == "jax" else {results.SAME, results.CLOSE}
    assert {row[contender]["result"] for contender in (results.OURS, results.KEPT)} <= allowed, row
    assert ("error of fit" in row) == (BACKEND == "jax")
    assert not results.surprise(row), row


# -- what is compared --------------------------------------------------------------------------------------------------


def row(plain, kept="same bits", differs=""):
    ends = {"logs": 0.0, "weights": 2e-7, "why": ""}
    return {
        "group": "layers",
        "name": "Dense",
        "seconds": {results.FIT: 1.0, results.OURS: 0.5, results.KEPT: 2.0},
        results.OURS: {**ends, "result": plain},
        results.KEPT: {**ends, "result": kept},
        "differs": differs,
    }


@pytest.mark.parametrize(
    ("found", "is_surprise"),
    [
        (row("same bits"), False),
        (row("close"), False),
        (row("rejected by both"), False),
        (row("different"), True),
        (row("same bits", "failed"), True),
        (row("rejected", "rejected", "sparse inputs"), False),
        (row("same bits", "same bits", "sparse inputs"), True),
    ],
)
def test_other_results_need_a_reason_and_reasons_other_results(found, is_surprise):
    assert bool(results.surprise(found)) == is_surprise


def test_what_the_pages_say():
    machine = {"cores": 2, "processor": "a processor", "load": 1.0}
    found = [
        {"backend": "jax", "date": "2026-11-18", "machine": machine, "versions": {"keras": "3"}, "cases": cases}
        for cases in [[row("close"), row("rejected", "rejected", "sparse inputs") | {"name": "LSTM"}]]
    ]
    assert "| close | 1 |" in pages.summary(found)
    assert "| sparse inputs | layers: LSTM (JAX) |" in pages.summary(found)
    assert "| Dense | to 2e-07 / same bits<br>1.0 / 0.5 / 2.0 |" in pages.table(found)
    assert "| LSTM | rejected: sparse inputs<br>1.0 / 0.5 / 2.0 |" in pages.table(found)


def test_a_case_without_a_reason_is_found():
    case = CASES["arguments: shuffle=True"]
    assert results.surprise(compare(case) | {"differs": ""})
