"""The live page of runs in a real browser: the table, the curves of ticked runs, and what changes meanwhile."""

import time
from urllib.parse import quote

import pytest

from everstep.report import RunsFolder, RunsServer

from .conftest import NARROW, forget
from .report_runs import HOSTILE, classification_run, resumed_run


@pytest.fixture
def served(tmp_path):
    folder = RunsFolder(tmp_path)
    with RunsServer(folder, "127.0.0.1", 0) as server:
        yield tmp_path, server


@pytest.fixture
def three(served):
    root, server = served
    for number, lag in enumerate((0.1, 0.4, 0.0)):
        resumed_run(root / f"run-{number}", lag=lag, config=f"trainer:\n  seed: {number}\n")
    return root, server


def texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector
    )


def click(driver, selector):
    driver.execute_script("document.querySelector(arguments[0]).click()", selector)


def tick(driver, name):
    click(driver, f'tr[data-run="{name}"] input')


def becomes(find, wanted):
    """Waits until the page shows what is wanted; it asks the server every two seconds."""
    end = time.monotonic() + 30
    while find() != wanted and time.monotonic() < end:
        time.sleep(0.25)

    assert find() == wanted


def names(driver):
    return texts(driver, ".runs tbody th")


def test_runs_are_listed_filtered_and_sorted(three, live_page):
    driver = live_page(three[1].port)
    becomes(lambda: sorted(names(driver)), ["run-0", "run-1", "run-2"])
    assert texts(driver, ".controls [role=status]") == ["3 runs"]
    click(driver, ".runs thead th:nth-child(2) button")
    assert names(driver) == ["run-0", "run-1", "run-2"]
    click(driver, ".runs thead th:nth-child(2) button")
    assert names(driver) == ["run-2", "run-1", "run-0"]
    assert "sort=-name" in driver.current_url
    search = driver.find_element("css selector", "input[type=search]")
    search.send_keys("run-1 finished")
    assert names(driver) == ["run-1"]
    assert texts(driver, ".controls [role=status]") == ["1 of 3 runs"]


def test_ticked_runs_share_charts_and_are_compared(three, live_page):
    driver = live_page(three[1].port, fragment="#run=run-1")
    becomes(lambda: texts(driver, "#curves figcaption")[:2], ["loss", "accuracy"])
    assert not texts(driver, "#comparison")
    tick(driver, "run-2")
    becomes(lambda: texts(driver, "#comparison thead th"), ["", "run-1", "run-2"])
    rows = dict(zip(texts(driver, "#comparison tbody th"), texts(driver, "#comparison tbody tr"), strict=True))
    assert rows["trainer.seed"] == "trainer.seed12"
    assert "trainer.seed" in rows
    legend = texts(driver, "#curves > .charts figure:first-child .entry")
    assert [text.rsplit(" ", 1)[0] for text in legend] == [
        f"{n}, {k}" for n in ("run-1", "run-2") for k in ("train", "validation")
    ]
    colour = "return getComputedStyle(document.querySelector(arguments[0])).color"
    assert driver.execute_script(colour, 'tr[data-run="run-2"] .pick i') == driver.execute_script(
        colour, "#curves path.line.run1"
    )
    driver.refresh()  # the choice is part of the address
    becomes(lambda: texts(driver, "#comparison thead th"), ["", "run-1", "run-2"])
    tick(driver, "run-1")
    becomes(lambda: texts(driver, "#comparison"), [])
    assert "run=run-1" not in driver.current_url


def test_the_page_is_live(three, live_page):
    root, server = three
    driver = live_page(server.port)
    becomes(lambda: len(names(driver)), 3)
    resumed_run(root / "later")
    becomes(lambda: sorted(names(driver)), ["later", "run-0", "run-1", "run-2"])
    tick(driver, "later")
    shown = "return [...document.querySelectorAll('#curves .entry')].map(node => node.textContent)"
    becomes(lambda: "later, validation 0.2667" in driver.execute_script(shown), True)
    history = root / "later" / "history.csv"
    text = history.read_text().rpartition("\n")[0]
    width = text.split("\n")[0].count(",")
    history.write_text(f"{text}\n42,0.25{',' * (width - 4)},0.125,,\n")
    becomes(lambda: "later, validation 0.125" in driver.execute_script(shown), True)


def test_reports_open(three, live_page):
    root, server = three
    classification_run(root / "run-0", rows=20)
    driver = live_page(server.port)
    becomes(lambda: len(names(driver)), 3)
    link = driver.find_element("css selector", 'tr[data-run="run-0"] a')
    assert link.get_attribute("target") == "_blank"
    driver.get(link.get_attribute("href"))
    assert driver.title == "run-0"
    assert texts(driver, "#table h2") == ["All samples"]


def test_a_server_that_has_ended_is_said(tmp_path, browser):
    forget(browser)
    with RunsServer(RunsFolder(tmp_path), "127.0.0.1", 0) as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        becomes(lambda: texts(browser, ".controls [role=status]"), ["No runs yet; they appear here when they begin."])
    becomes(lambda: texts(browser, ".pulse"), ["not connected: everstep ui has ended"])
    forget(browser)


def test_names_are_text(served, live_page):
    root, server = served
    name = HOSTILE.replace("/", "_")
    resumed_run(root / name, config=f"a: {HOSTILE!r}\n")
    resumed_run(root / "plain", config="a: 1\n")
    driver = live_page(server.port, fragment=f"#run={quote(name)}&run=plain")
    becomes(lambda: sorted(names(driver)), sorted([name, "plain"]))
    becomes(lambda: texts(driver, "#comparison thead th"), ["", name, "plain"])
    assert driver.execute_script("return window.hacked") is None


def test_a_phone_shows_all_without_scrolling_the_page_sideways(three, live_page):
    driver = live_page(three[1].port, NARROW, "#run=run-0&run=run-1")
    becomes(lambda: bool(texts(driver, "#comparison thead th")), True)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= NARROW[0]
