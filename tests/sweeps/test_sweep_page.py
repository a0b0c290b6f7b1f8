"""The page of a sweep: its numbers, and that a real browser draws it."""

import json
import math

import pytest

from everstep.sweeps.page import importances, write

SPACE = {
    "task.model.units": [8, 16, 32],
    "rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "kind": ["adam", "sgd"],
    "momentum": {"low": 0.0, "high": 0.9, "when": {"kind": "sgd"}},
}


def objective(values, directory):
    if values["task.model.units"] == 8 and values["kind"] == "sgd":
        raise RuntimeError("<script>alert(1)</script>")
    return (math.log10(values["rate"]) + 2) ** 2 + 0.01 * values.get("momentum", 0.0)


@pytest.fixture
def swept(sweep):
    return sweep(lambda values, directory: objective(values, directory), SPACE, trials=16, sampler="random")


def test_importance_and_reloading(swept):
    rows = importances(swept._study)
    assert rows[0]["key"] == "rate"
    assert rows[0]["mean"] > max(row["mean"] for row in rows[1:])
    assert all(0 <= row["low"] <= row["high"] <= 1 for row in rows)

    assert 'http-equiv="refresh"' not in swept.page.read_text("utf-8")
    write(swept._study, running=True)
    assert 'http-equiv="refresh"' in swept.page.read_text("utf-8")
    table = json.loads((swept.directory / "trials.json").read_text("utf-8"))
    assert (table["best"], table["finished"], len(table["trials"])) == (swept.best.number, 16, 16)


def test_the_page_in_a_browser(swept, page):
    driver = page(swept.page)

    def texts(selector):
        return [one.text for one in driver.find_elements("css selector", selector)]

    sections = ["Summary", "History", "Parallel coordinates", "Importance", "Slices", "Trials"]
    assert texts("section h2") == sections
    best = swept.best
    assert f"trial {best.number}" in texts("[data-figure=best] .muted")[0]
    assert texts("[data-figure=trials] .big") == ["16 of 16"]
    complete = [trial for trial in swept.trials if trial.state == "complete"]
    assert len(driver.find_elements("css selector", "#history circle")) == len(complete)
    assert len(driver.find_elements("css selector", "#parallel path.trial")) == len(complete)
    assert len(driver.find_elements("css selector", "#parallel text.name")) == 5
    assert len(driver.find_elements("css selector", "#importance rect")) == 4
    assert len(driver.find_elements("css selector", "#slices figure")) == 4
    assert len(driver.find_elements("css selector", "#trials tbody tr")) == 16
    driver.find_elements("css selector", "#trials th button")[2].click()  # by the metric
    first = driver.find_element("css selector", "#trials tbody tr")
    assert first.get_attribute("data-trial") == str(best.number)
    assert "<script>alert(1)</script>" in " ".join(texts("td.reason"))
    link = driver.find_element("css selector", "#trials tbody tr a").get_attribute("href")
    assert link.endswith(f"/trials/{best.number}/")
