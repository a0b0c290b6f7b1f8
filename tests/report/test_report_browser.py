"""The page in a real browser: sorting, filtering, details, comparison, a phone's screen, and hostile data."""

import time

import numpy as np
import pytest

from everstep.evaluation import Evaluator, SampleBatch
from everstep.report import write

from .conftest import NARROW, WIDE
from .report_runs import HOSTILE, classification_run, exported_run, regression_run, resumed_run, segmentation_run


def texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector
    )


def element(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0])", selector)


def click(driver, selector):
    driver.execute_script("document.querySelector(arguments[0]).click()", selector)


def key(driver, selector, name):
    event = "new KeyboardEvent('keydown', {key: arguments[1], bubbles: true})"
    script = f"(arguments[0] || document.activeElement).dispatchEvent({event})"
    driver.execute_script(script, selector and element(driver, selector), name)


def column(driver, place):
    """Returns the rendered cells of a column of the table."""
    return texts(driver, f"#table tbody tr[data-order] > :nth-child({place})")


def sort_by(driver, name):
    click(driver, f"#table thead button[title='{name}']")


def until(condition, seconds=300):
    """Waits for the next frame to be drawn; the limit only guards against waiting forever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on classes, with curves over two attempts; written once."""
    return write([classification_run(resumed_run(tmp_path_factory.mktemp("runs") / "first"), rows=1000)])


def test_all_sections_are_shown(page, report):
    driver = page(report)
    assert texts(driver, "h1") == ["first"]
    titles = ["Summary", "Learning curves", "Confusion", "Classes", "Distributions", "Worst samples", "Slices"]
    assert texts(driver, "h2") == texts(driver, "nav a") == [*titles, "All samples", "Configuration"]
    assert texts(driver, ".figures .name") == ["loss", "cross entropy", "accuracy"]
    assert "finished" in texts(driver, ".facts .status")
    assert len(texts(driver, "#curves figure")) == 4
    assert len(texts(driver, "#curves .mark")) == 3  # one later attempt, in each chart that is open
    assert texts(driver, "pre") == ["trainer:\n  seed: 1\n"]
    assert len(texts(driver, ".gallery img")) == len(texts(driver, ".gallery .sample")) == 24


def test_the_exported_epoch_and_one_card_for_each_metric(page, tmp_path):
    folder = exported_run(classification_run(tmp_path / "run", split="validation"))
    classification_run(folder, split="test")
    driver = page(write([folder]))
    assert texts(driver, "header .origin span") == [
        "date 2026-05-01",
        "code sources 555555555555",
        "exported epoch 3, chosen by the lowest val_loss: 0.5",
    ]
    assert texts(driver, ".figures li")[0] == "loss0.5 test0.5 validation"
    assert texts(driver, ".figures .name") == ["loss", "cross entropy", "accuracy"]
    assert texts(driver, "#curves .exported title") == ["epoch 3: exported, chosen by the lowest val_loss: 0.5"]
    assert set(texts(driver, "#curves svg .axis")) >= {"1", "2", "3", "4", "epoch"}
    key(driver, "#curves svg", "ArrowRight")
    assert "epoch 1" in texts(driver, "#curves .legend")[0]


def test_headings_and_labels_for_screen_readers(page, report):
    driver = page(report)
    unnamed = """return [...document.querySelectorAll('button, input, select, svg, img, [role=region]')].filter(node =>
        !(node.getAttribute('aria-label') || node.alt || node.textContent.trim() || node.closest('label')))
        .map(node => node.outerHTML.slice(0, 80))"""
    assert driver.execute_script(unnamed) == []
    assert driver.execute_script("return document.documentElement.lang") == "en"
    assert driver.execute_script("return document.querySelectorAll('h1').length") == 1


def test_curves_are_read_with_the_arrow_keys(page, report):
    driver = page(report)
    before = texts(driver, "#curves .legend")[0]
    key(driver, "#curves svg", "ArrowRight")
    after = texts(driver, "#curves .legend")[0]
    assert "step 2" in after
    assert "step" not in before
    click(driver, "#curves input[type=checkbox]")
    until(lambda: len(texts(driver, "#curves path.line")) == 5)


def test_sorting(page, report):
    driver = page(report)
    sort_by(driver, "cross_entropy")
    down = [float(text) for text in column(driver, 5)]
    assert down == sorted(down, reverse=True)
    assert element(driver, "#table th[aria-sort=descending]").text.startswith("cross entropy")
    sort_by(driver, "cross_entropy")
    up = [float(text) for text in column(driver, 5)]
    assert up == sorted(up)
    assert max(up) < min(down)
    sort_by(driver, "id")
    assert column(driver, 1)[:3] != []
    assert [text.removeprefix("▣ ") for text in column(driver, 1)[:3]] == ["image_0.png", "image_1.png", "image_2.png"]


def test_searching_and_filtering(page, report):
    driver = page(report)
    search = element(driver, "#table input[type=search]")
    search.send_keys("image_99")
    assert {text.removeprefix("▣ ") for text in column(driver, 1)} == {
        "image_99.png",
        *(f"image_99{i}.png" for i in range(10)),
    }
    assert "11 of 1,000 rows" in texts(driver, "#table p")
    search.clear()
    driver.execute_script("document.querySelector('#table form select').value = 'label'")
    element(driver, "#table form input[type=text]").send_keys("bee")
    click(driver, "#table form button[type=submit]")
    assert set(column(driver, 2)) == {"bee"}
    assert "label is bee ✕" in texts(driver, "nav .chip")
    click(driver, "nav .chip")
    assert "1,000 of 1,000 rows" in texts(driver, "#table p")


def test_a_confusion_cell_filters_its_samples(page, report):
    driver = page(report)
    cell = "#confusion tbody tr:nth-child(1) td:nth-child(3) button"  # ants taken for bees
    times = int(texts(driver, cell)[0])
    click(driver, cell)
    assert set(column(driver, 2)) == {"ant"}
    assert set(column(driver, 3)) == {"bee"}
    assert f"{times} of 1,000 rows" in texts(driver, "#table p")
    assert set(texts(driver, "#samples .outcome")) == {"ant → bee"}
    assert driver.switch_to.active_element.text == "Worst samples"
    click(driver, "nav .strip .plain")
    assert len(texts(driver, "#samples .sample")) == 24


def test_the_confusion_matrix_has_keyboard_navigation(page, report):
    driver = page(report)
    driver.execute_script("document.querySelector('#confusion .cell').focus()")
    for name in ("ArrowRight", "ArrowDown", "ArrowLeft"):
        key(driver, None, name)
    assert "bee taken for ant" in driver.switch_to.active_element.get_attribute("aria-label")
    counts = texts(driver, "#confusion .cell")
    click(driver, "#confusion .segments button:nth-child(2)")
    shares = texts(driver, "#confusion .cell")
    assert counts != shares
    assert float(shares[0]) + float(shares[1]) + float(shares[2]) == pytest.approx(1, abs=0.02)


def test_a_class_a_slice_and_a_bar_filter_the_table(page, report):
    driver = page(report)
    click(driver, "#classes tbody tr:nth-child(2) th button")
    assert set(column(driver, 2)) == {"bee"}
    click(driver, "#slices tbody tr:nth-child(1) th button")
    camera = texts(driver, "#slices tbody tr:nth-child(1) th button")[0]
    assert set(column(driver, 7)) == {camera}
    wanted = texts(driver, "#slices tbody tr:nth-child(1) td")[0]
    assert f"{wanted} of 1,000 rows" in texts(driver, "#table p")
    for _ in range(2):
        key(driver, "#distributions svg", "ArrowRight")
    key(driver, "#distributions svg", "Enter")
    reading = texts(driver, "#distributions .legend")[0]
    assert texts(driver, "#table p")[-1].split(" of ")[0] == reading.split(": ")[1].split(" sample")[0]


def test_slices_and_table_have_the_same_counts(page, report):
    driver = page(report)
    names = driver.execute_script("return [...document.querySelector('#slices select').options].map(o => o.value)")
    assert names == ["camera", "brightness", "label", "prediction", "confidence", "cross_entropy", "accuracy"]
    script = """const select = document.querySelector('#slices select'); select.value = arguments[0];
        select.dispatchEvent(new Event('change'));
        return [...document.querySelectorAll('#slices tbody tr')].map(row => {
          row.querySelector('button').click();
          return [row.children[1].textContent, document.querySelector('#table p.muted').textContent.split(' of ')[0]];
        })"""
    for name in names:
        assert all(said == found for said, found in driver.execute_script(script, name)), name


def test_a_sample_opens_and_closes(page, report):
    driver = page(report)
    click(driver, "#samples .sample")
    assert element(driver, "dialog[open] img") is not None
    assert "cross entropy" in texts(driver, "dialog dt")
    click(driver, "dialog .head button")
    assert element(driver, "dialog[open]") is None
    key(driver, "#table tbody tr[tabindex='0']", "ArrowDown")
    assert driver.switch_to.active_element.get_attribute("data-order") == "1"
    key(driver, "#table tbody tr[tabindex='0']", "Enter")
    assert texts(driver, "dialog[open] h3") == ["image_1.png"]


def test_twenty_thousand_rows_scroll(page, tmp_path):
    driver = page(write([classification_run(tmp_path, rows=20_000)]))
    assert len(texts(driver, "#table tbody tr")) < 80
    driver.execute_script("document.querySelector('.virtual-scroller').scrollTop = 1e9")
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert column(driver, 1)[-1].removeprefix("▣ ") == "image_19999.png"
    paint = """const box = document.querySelector('.virtual-scroller'), start = performance.now();
        for (let i = 0; i < 50; i += 1) { box.scrollTop = i * 12000; box.dispatchEvent(new Event("scroll"));
          box.offsetHeight; }
        return (performance.now() - start) / 50"""
    milliseconds = driver.execute_script(paint)
    print(f"20,000 rows: {milliseconds:.1f} ms to draw the table at another place")
    assert milliseconds < 100
    start = time.perf_counter()
    sort_by(driver, "cross_entropy")
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_scripts_in_the_data_are_not_run(page, tmp_path, size):
    run = resumed_run(tmp_path / "<img src=x onerror=window.hacked=1>", config=f"name: {HOSTILE!r}\n")
    path = run / "history.csv"
    path.write_text(path.read_text().replace("learning_rate", "<img src=x onerror=window.hacked=1>"))
    classification_run(
        run,
        ids=[f"{HOSTILE}{i}" for i in range(200)],
        classes=(HOSTILE, "&lt;b&gt;", "c"),
        texts=[HOSTILE] * 200,
        columns={HOSTILE: [HOSTILE, "x"] * 100},
    )
    driver = page(write([run]), size)
    for selector in (
        "#samples .sample",
        "#confusion .cell",
        "#classes tbody button",
        "#slices tbody button",
        "nav .chip",
    ):
        click(driver, selector)
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.querySelectorAll('img, script:not([type]) ~ script').length") == 0
    assert texts(driver, "h1") == ["<img src=x onerror=window.hacked=1>"]
    assert HOSTILE in texts(driver, "blockquote")
    assert f"{HOSTILE}0" in [text.removeprefix("▣ ") for text in column(driver, 1)]
    assert "&lt;b&gt;" in texts(driver, "#classes th button")


def test_the_content_security_policy_blocks_injected_scripts(browser, tmp_path):
    """Injected markup is blocked; without the `page` fixture, since the browser logs the violation."""
    path = write([resumed_run(tmp_path)])
    text = path.read_text("utf-8").replace("<noscript>", f"{HOSTILE.removeprefix('</script>')}<noscript>", 1)
    path.write_text(text, "utf-8")
    browser.get(path.as_uri())
    assert browser.execute_script("return window.hacked") is None
    assert texts(browser, "h2")[0] == "Summary"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


@pytest.mark.parametrize("kind", ["classes", "numbers", "masks", "curves", "two"])
def test_a_phone_needs_no_scrolling_sideways(page, tmp_path, kind):
    make = {"classes": classification_run, "numbers": regression_run, "masks": segmentation_run}.get(
        kind, lambda path: path
    )
    runs = [make(resumed_run(tmp_path / "a_rather_long_name_of_a_run_without_any_spaces_in_it_at_all"))]
    runs += [resumed_run(tmp_path / "second")] if kind == "two" else []
    driver = page(write(runs), NARROW)
    widths = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths == [390, 390]
    small = """return [...document.querySelectorAll('p, td, th, dd, button')].filter(node => node.offsetParent &&
        parseFloat(getComputedStyle(node).fontSize) < 11).length"""
    assert driver.execute_script(small) == 0


def test_regression(page, tmp_path):
    driver = page(write([regression_run(tmp_path / "run")]))
    assert texts(driver, "#regression figcaption") == [
        "Prediction by label",
        "Residual by prediction",
        "Residuals: prediction − label",
    ]
    assert len(texts(driver, "#regression figure:nth-child(1) circle")) == 149
    key(driver, "#regression svg", "ArrowRight")
    key(driver, "#regression svg", "Enter")
    assert texts(driver, "dialog[open] h3") == ["0"]
    assert element(driver, "#confusion") is None
    sort_by(driver, "absolute_error")
    assert "–" not in column(driver, 4)[:40]  # what is missing comes last


def test_numbers_whose_difference_overflows(page, tmp_path):
    labels = np.array([1.2e308, -1.2e308, 1e16, 1e16 + 2, 1.7e308])
    answers = np.array([1e308, -1e308, 1e16 + 2, 1e16, -1.7e308])
    Evaluator({"half": lambda y_true, y_pred: float(y_true) / 2}, kind="regression").run(
        [SampleBatch(None, labels, answers)], tmp_path / "reports", "test"
    )
    driver = page(write([tmp_path]))
    assert len(texts(driver, "#regression figure:nth-child(2) circle")) == 4
    until(lambda: texts(driver, "#distributions rect"))
    drawings = driver.execute_script("return [...document.querySelectorAll('svg')].map(node => node.outerHTML)")
    assert len(drawings) >= 4
    assert not [drawing for drawing in drawings if "NaN" in drawing or "Infinity" in drawing]


def test_configurations_that_cannot_be_read_are_not_called_the_same(page, tmp_path):
    configs = {"a": "seed: 1\n", "b": "seed: [1\n", "c": "seed: 1\n"}
    runs = [resumed_run(tmp_path / name, config=text) for name, text in configs.items()]
    path, note = tmp_path / "page.html", "Not compared, because it cannot be read as settings in YAML: b."
    assert texts(page(write(runs[:2], path)), "#configuration .note") == [note]
    driver = page(write(runs, path))
    assert texts(driver, "#configuration .note") == [note, "The other configurations are the same."]


def test_segmentation(page, tmp_path):
    driver = page(write([segmentation_run(tmp_path / "run")]))
    assert texts(driver, "#samples .sample:first-child figcaption")[:3] == ["input", "target", "output"]
    widths = driver.execute_script("return [...document.images].map(image => image.complete && image.naturalWidth)")
    assert set(widths) == {32}


def test_curves_alone(page, tmp_path):
    driver = page(write([resumed_run(tmp_path / "run")]))
    assert texts(driver, "h2") == ["Summary", "Learning curves", "Configuration"]
    assert "not evaluated sample by sample" in texts(driver, "main > .split")[0]


def test_two_runs_side_by_side(page, tmp_path):
    first = classification_run(resumed_run(tmp_path / "first"), ids=[f"i{n}" for n in range(200)])
    second = classification_run(
        resumed_run(tmp_path / "second", lag=0.1), seed=4, sharp=3, ids=[f"i{n}" for n in range(200)]
    )
    classification_run(second, split="validation", rows=50)
    driver = page(write([first, second]))
    assert texts(driver, "#summary .compared thead th") == ["metric", "first", "second"]
    assert len(texts(driver, "#summary .difference.good")) >= 1
    assert len(texts(driver, "#curves figure:first-child path.line")) == 4
    assert texts(driver, "#changes h3") == ["Got worse", "Got better"]
    assert len(texts(driver, "#changes .sample")) == len(texts(driver, "#changes .sample img")) >= 24
    click(driver, "#changes input[type=checkbox]")
    assert len(texts(driver, "#changes .sample")) == 48
    click(driver, ".chooser .segments[aria-label=Run] button:nth-child(2)")
    assert "change of accuracy" in driver.execute_script(
        "return [...document.querySelectorAll('#table thead button')].map(button => button.title)"
    )
    click(driver, ".chooser .segments[aria-label=Data] button:nth-child(2)")
    assert "50 of 50 rows" in texts(driver, "#table p")
    click(driver, ".chooser .segments[aria-label=Run] button:nth-child(1)")
    assert "200 of 200 rows" in texts(driver, "#table p")


def test_dark_and_print(page, report):
    driver = page(report)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(background)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    dark = driver.execute_script(background)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert driver.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert light == "rgb(246, 247, 249)"
    assert dark == "rgb(17, 21, 27)"
