"""The model of many devices: its formulas, and the page that shows its figures."""

import dataclasses
import math

import pytest
from benchmarks import report, scale_model
from benchmarks.results import Results
from benchmarks.scale_model import CHANGED, IMAGES, LANGUAGE, RATES, TODAY, Cluster, Measured, Model

MEASURED = Measured.of(Results.read(scale_model.RESULTS))
SIZES = [2**power for power in range(3, 15)]
MODELS = [
    Model(MEASURED, Cluster(per_process=per_process, device_hours=rate.device_hours), workload, design)
    for per_process in (1, 8)
    for rate in RATES
    for workload in (LANGUAGE, IMAGES)
    for design in (TODAY, CHANGED)
]


def test_the_page_is_what_the_model_says():
    page = report.SCALE.read_text("utf-8")
    figures = scale_model.generated(Results.read(scale_model.RESULTS))
    assert page == report.page_with(figures, page), "run python -m benchmarks.report"


def test_published_rates():
    hours = {rate.name: Cluster(device_hours=rate.device_hours).between_failures(16384) / 3600 for rate in RATES}
    assert hours["Llama 3"] == pytest.approx(3.1, abs=0.05)  # one failure every three hours
    assert hours["RSC-1"] == pytest.approx(1.8, abs=0.05)  # as the paper projects
    assert Cluster(device_hours=scale_model.OPT.device_hours).between_failures(992) == pytest.approx(7.5 * 3600)


def test_one_process_costs_nothing():
    for model in (Model(MEASURED), Model(MEASURED, design=CHANGED)):
        assert model.cluster.processes(8) == 1
        costs = [
            model.meeting(8),
            model.agreement(8),
            model.lengths(8),
            model.beats(8),
            model.roll_call(8),
            model.introductions(8),
        ]
        assert costs == [0] * 6
        assert model.restart(8)["noticed"] == 0
        assert model.pace(8) == 1


@pytest.mark.parametrize("model", MODELS)
def test_costs_grow_with_devices_and_shares_are_shares(model):
    for cost in (model.meeting, model.lengths, model.beats, model.roll_call, model.introductions):
        costs = [cost(size) for size in SIZES]
        assert all(later >= before * 0.99 for before, later in zip(costs, costs[1:], strict=False)), cost
    for result in (model.goodput, model.kept, model.pace):
        assert all(0 <= result(size) <= 1 for size in SIZES)
    shares = [model.goodput(size) for size in SIZES]
    assert all(later <= before * 1.001 for before, later in zip(shares, shares[1:], strict=False))


@pytest.mark.parametrize("model", MODELS)
def test_no_change_makes_anything_worse(model):
    for field in dataclasses.fields(TODAY):
        without = dataclasses.replace(model, design=dataclasses.replace(model.design, **{field.name: False}))
        having = dataclasses.replace(model, design=dataclasses.replace(model.design, **{field.name: True}))
        for size in SIZES:
            assert having.goodput(size) >= without.goodput(size) * 0.999, (field.name, size)


@pytest.mark.parametrize("between", [600.0, 11_000.0, 1e6])
@pytest.mark.parametrize("saving", [0.5, 20.0, 300.0])
@pytest.mark.parametrize("restart", [0.0, 120.0])
def test_the_best_interval_is_the_best(saving, between, restart):
    best = scale_model.optimal_interval(saving, between)
    most = scale_model.goodput(best, saving, between, restart)
    for factor in (0.2, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 5.0):
        assert scale_model.goodput(best * factor, saving, between, restart) < most
    if saving < between / 1000:
        assert best == pytest.approx(scale_model.young(saving, between), rel=0.05)


def test_limits_of_goodput():
    assert scale_model.goodput(100.0, 0.0, math.inf, 1e9) == 1.0
    assert scale_model.goodput(100.0, 25.0, math.inf, 0.0) == 0.8
    assert scale_model.goodput(100.0, 1.0, 1e12, 60.0) == pytest.approx(100 / 101)
    assert scale_model.goodput(100.0, 1.0, 0.01, 60.0) == 0.0
    rare = scale_model.kept_steps(10.0, 0.0, 10_000.0)
    assert 1 - rare == pytest.approx(10.0 / 2 / 10_000.0, rel=0.01)  # half an interval is lost per failure
    written = scale_model.kept_steps(10.0, 0.0, 10_000.0, writing=3.0)
    assert 1 - written == pytest.approx((10.0 / 2 + 3.0) / 10_000.0, rel=0.01)


def test_what_breaks_is_too_much_there_and_bearable_before():
    for model in MODELS[:4]:
        for limit in scale_model.LIMITS:
            at = limit.breaks_at(model)
            if at is not None:
                assert limit.cost(model, at) > 1
                assert at == 8 or limit.cost(model, at // 2) <= 1


def test_the_picture_is_the_same_for_the_same_figures(tmp_path):
    scale_model.draw(MEASURED, tmp_path / "one.svg")
    scale_model.draw(MEASURED, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
