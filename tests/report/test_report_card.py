"""The model card of a run: texts are escaped, and files of the user's are never overwritten."""

import datetime
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from everstep import redaction
from everstep.report.card import write_card
from everstep.report.card.files import escaped, histogram, ticks
from everstep.report.numbers import shown

from .report_runs import HOSTILE, classification_run, resumed_run


@pytest.fixture
def run(tmp_path):
    return classification_run(resumed_run(tmp_path / "runs" / "first"), rows=40)


def readme(folder):
    return (folder / "README.md").read_text("utf-8")


def page(folder):
    return (folder / "model-card" / "model_card.html").read_text("utf-8")


def rendered(text):
    """Renders Markdown as code hosts do, with tables and HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "<!-- a comment --> &amp; &lt;b&gt; &#60;i&#62;",
        "**bold** _it_ `code` ~~gone~~ ![x](http://a/b.png) [y](javascript:alert(1)) <http://auto.link>",
        "# no heading",
        "- no item",
        "+ no item",
        "1. no item",
        "12) no item",
        "--- ",
        "| a | b |",
        "> no quote",
        "\\* a \\ backslash \\",
        "```no fence",
        "[ref]: http://a/b",
        "$x_1$ and a trailing #",
        "snake_case_name and 2 * 3 * 4",
    ],
)
def test_markdown_shows_what_was_written(text):
    shown_text = rendered(escaped(text))
    assert re.findall(r"<(/?\w+)", shown_text) == ["p", "/p"]
    plain = re.sub(r"</?p>", "", shown_text).strip()
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        plain = plain.replace(entity, letter)
    assert plain == text.strip()
    cells = rendered(f"| a | b |\n|---|---|\n| {escaped(text)} | c |\n")
    assert cells.count("<td>") == 2
    assert "<script" not in cells
    assert "<img" not in cells


def test_the_classes_are_named(run):
    path = run / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "classes": ["cat", *(f"breed {number}" for number in range(24))]}))
    write_card(run, {})
    assert "cat, breed 0, breed 1" in readme(run)
    assert "breed 18 and 5 more" in readme(run)


def test_descriptions_of_any_type(run):
    config = {
        "project_name": "insects",
        "model_details": {
            "name": "Bee\tfinder\x07",
            "overview": "One.\nStill one.\n\nTwo.",
            "version": 3,
            "released": datetime.date(2026, 5, 1),
            "owners": [{"name": "A. Bee", "contact": "bee@example.org"}, None, ""],
            "documentation": None,
        },
        "model_parameters": {"data": {"name": "insects", "link": "javascript:alert(1)"}, "input_format": []},
        "considerations": {"users": ["one alone"], "use_cases": ["a", ["b", "c"]], "limitations": None},
    }
    write_card(run, config)
    text, html = readme(run), page(run)
    assert "# Bee finder\n\nRun first of insects\n\nOne. Still one.\n\nTwo.\n\n## Details" in text
    assert "**Version**: 3\n\n**Released**: 2026-05-01" in text
    assert "**Owners**: name: A. Bee; contact: bee@example.org" in text
    assert "**Users**: one alone\n\n**Use cases**\n\n- a\n- b, c\n" in text
    assert "Documentation" not in text
    assert "Limitations" not in text
    assert "**Data**: insects" in text
    assert "<title>Bee finder</title>" in html
    assert "<dd><p>javascript:alert(1)</p></dd>" in html  # as text: it is no link
    assert "<li>b, c</li>" in html


def test_a_card_without_descriptions_and_training(tmp_path):
    """The run has only an evaluation without metric functions."""
    reports = tmp_path / "bare" / "reports"
    reports.mkdir(parents=True)
    means = {"evaluation": 0, "test": {"model.evaluate": {"loss": 0.5, "auc": "NaN"}, "eval_funcs": {}}}
    (reports / "metrics.json").write_text(json.dumps(means))
    write_card(tmp_path / "bare", {})
    text = readme(tmp_path / "bare")
    assert "| mean (samples) | test |\n| --- | ---: |\n| loss | 0.5 |\n| auc | – |\n" in text
    assert "Training" not in text
    assert "How to load" not in text
    assert ".svg" not in text
    assert "<svg" not in page(tmp_path / "bare")


@pytest.mark.parametrize(("file", "line"), [("model.skops", "skops.io.load"), ("model.joblib", "only what you trust")])
def test_an_estimator(run, file, line):
    (run / "exported").mkdir()
    export = {"metric": "val_loss", "mode": "min", "estimator": file, "code": {"commit": "c0ffee" * 7, "dirty": True}}
    (run / "exported" / "export.json").write_text(json.dumps(export))
    write_card(run, {"epochs": None})
    assert line in readme(run)
    assert f'"runs/first/exported/{file}"' in readme(run)
    assert "best epoch" not in readme(run)
    assert "| code | c0ffeec0ffee with changes |" in readme(run)  # of the project, not of where the process stood


def test_secrets_are_redacted(run):
    secret = "hunter2hunter2hunter2"
    redaction.remember(secret)
    write_card(run, {"model_details": {"overview": f"uses {secret}", "api_key": "abcdefgh12345678"}})
    for text in (readme(run), page(run)):
        assert secret not in text
        assert "abcdefgh12345678" not in text


def test_files_of_the_user_are_kept(run, caplog):
    write_card(run, {})
    ours = (run / "README.md").read_bytes()
    (run / "README.md").write_bytes(b"\xef\xbb\xbf\n" + ours)  # as an editor saves it
    write_card(run, {})
    assert (run / "README.md").read_bytes() == ours
    (run / "README.md").write_bytes(ours.split(b"\n", 1)[1])  # the line that says whose it is was removed
    written = write_card(run, {})
    assert (run / "README.md").read_bytes() == ours.split(b"\n", 1)[1]
    assert [path.name for path in written] == ["model_card.html", "MODEL_CARD.md"]
    (run / "MODEL_CARD.md").write_text("mine too")
    written = write_card(run, {})
    assert [path.name for path in written] == ["model_card.html"]
    assert (run / "MODEL_CARD.md").read_text() == "mine too"
    assert "only the page is written" in caplog.text


def test_pictures_of_removed_metrics_are_deleted(run):
    write_card(run, {})
    assert len(list((run / "model-card" / "histograms").iterdir())) == 2
    data = json.loads((run / "reports" / "test.json").read_text())
    del data["metrics"][1]
    data["metrics"][0]["name"] = "../../ Ä <x>"
    (run / "reports" / "test.json").write_text(json.dumps(data))
    write_card(run, {})
    assert [path.name for path in (run / "model-card" / "histograms").iterdir()] == ["test-1-x.svg"]
    assert "(model-card/histograms/test-1-x.svg)" in readme(run)
    assert "<x>" not in page(run).replace("<title>", "")


@pytest.mark.parametrize("edges", [(0.0, 1.0), (-1e308, 1e308), (1e-300, 2e-300), (1e9, 1e9 + 1e-6), (-3.0, -2.9)])
@pytest.mark.parametrize("counts", [[0, 0], [1, 0], [3, 1_000_000]])
def test_histograms_of_all_sizes(edges, counts):
    low, high = edges
    svg = ET.fromstring(histogram([low, low / 2 + high / 2, high], counts, low / 2 + high / 2, 'a "label" <b>'))
    assert svg.attrib["aria-label"] == 'a "label" <b>'
    bars = [node for node in svg if node.attrib.get("class") == "bar"]
    assert len(bars) == sum(count > 0 for count in counts)
    numbers = [float(value) for node in svg for key, value in node.attrib.items() if key in ("x", "y", "x1", "height")]
    assert all(math.isfinite(number) and -10 <= number <= 360 for number in numbers)


def test_ticks_are_round_numbers():
    assert ticks(0, 1, 4) == [0, 0.5, 1]
    assert ticks(-3, 17, 4) == [0, 5, 10, 15]
    assert ticks(0, 3, 3) == [0, 1, 2, 3]
    assert [shown(value) for value in (0.99996, 1.0, 1234.56, 0.00001234, 2e7, None, math.nan)] == [
        *("0.99996", "1", "1,235", "1.23e-5", "20,000,000", "–", "–"),
    ]


def test_python_and_the_page_format_numbers_alike(browser):
    """Python and the page spell numbers alike."""
    from everstep.report.html_page import page_file

    values = [0.99996, 0.123456, -0.5, 1234.56, 99999.5, 1e-5, 123456789.5, 0.30000000000000004, 12, 1e8]
    spelled = browser.execute_script(
        f"{page_file('format.js')}; return arguments[0].map((value) => number(value))", values
    )
    assert [shown(value) for value in values] == spelled
