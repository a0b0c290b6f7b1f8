"""What a notebook shows of histories, runs, comparisons and reports, as HTML that holds nothing but what it shows."""

import html
import re
import xml.etree.ElementTree as ElementTree

import pytest

import everstep
from everstep.report import history_html, run_html, side_by_side
from everstep.tracking.cell_display import LogTable, cell_html, cell_text
from everstep.tracking.live_display import DisplayStatus

from .report_runs import HOSTILE, classification_run, resumed_run


def charts(text):
    """The charts, each of which has to be well-formed."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def is_inert(text):
    return not re.search(r"<script|<img|\son\w+=|javascript:|https?:", text)


def test_a_history_has_a_chart_for_each_metric():
    history = {"accuracy": [0.5, 0.9], "loss": [1.0, 0.2], "val_loss": [1.5, 0.4], "val_accuracy": [0.4, 0.8]}
    text = history_html([0, 1], history, "runs/a")
    assert [chart.get("aria-label") for chart in charts(text)] == ["loss over epochs", "accuracy over epochs"]
    assert "2 epochs · best val_loss 0.4 in epoch 2" in text
    assert "everstep.show_report(&#x27;runs/a&#x27;)" in text
    assert is_inert(text)


def test_a_history_may_have_gaps_and_nothing():
    assert charts(history_html([], {})) == []
    assert charts(history_html([0], {"loss": [float("nan")]})) == []
    uneven = history_html([0, 1, 2, 3], {"loss": [4.0, 3.0, float("inf"), 1.0], "val_loss": [2.0, 1.0]})
    assert len(charts(uneven)) == 1
    assert "best val_loss 1 " not in uneven, "it is unknown in which epoch it was"


def test_a_run_shows_its_facts_and_curves(tmp_path):
    text = run_html(resumed_run(tmp_path / "first"))
    assert "<b>first</b> · status finished · steps 40" in text
    assert "loss over steps" in {chart.get("aria-label") for chart in charts(text)}
    assert is_inert(text)


def test_a_comparison_marks_the_better(tmp_path):
    runs = [resumed_run(tmp_path / "a"), resumed_run(tmp_path / "b", lag=0.3, config="trainer:\n  seed: 2\n")]
    compared = side_by_side.side_by_side(runs)
    text = compared._repr_html_()
    assert repr(compared) == "<comparison of a, b>"
    assert ">trainer.seed</td>" in text
    assert "font-weight:700" in text
    assert is_inert(text)


def test_names_are_text(tmp_path):
    folder = resumed_run(tmp_path / HOSTILE.replace("/", "_"))
    shown = [run_html(folder), history_html([0], {HOSTILE: [1.0]}, HOSTILE)]
    table = LogTable()
    table.add(1, f"{HOSTILE}: 1/2", {HOSTILE: 0.5}, "train")
    shown.append(cell_html(DisplayStatus(step=1, total=2), table, ended=False))
    for text in shown:
        assert "<script" not in text
        assert "<img" not in text
        assert html.escape("<img", quote=True) in text


def test_a_report_is_a_frame_with_the_whole_page(tmp_path):
    first = classification_run(resumed_run(tmp_path / "first"), rows=20)
    frame = everstep.show_report(first, height=300)
    text = frame._repr_html_()
    page = html.unescape(re.search('srcdoc="(.*?)"', text, re.DOTALL)[1])
    assert page.startswith("<!doctype html>")
    assert "height:300px" in text
    assert repr(frame) == f"<report of {first}>"
    assert not (first / "reports" / "report.html").exists()
    both = everstep.show_report([first, resumed_run(tmp_path / "second")])
    assert "first · second" in html.unescape(both._repr_html_())


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(everstep.UsageError):
        everstep.show_report(tmp_path)
    with pytest.raises(everstep.UsageError):
        everstep.show_report([])


def test_the_table_of_a_cell_keeps_the_best_row():
    table = LogTable()
    for step in range(1, 31):
        table.add(step, f"epoch: {step}/30", {"training_loss": 1 / step, "learning_rate": 0.1}, "train")
        table.add(step, f"epoch: {step}/30", {"loss": abs(step - 3) + 0.5}, "validation")
    assert table.shown() == [3, *range(23, 31)]
    text = cell_text(DisplayStatus(step=30, total=30, gone=3.0), table, ended=True)
    assert text.splitlines()[0] == "trained 30 steps · 3 s"
    assert text.splitlines()[1].split() == ["epoch", "loss", "val_loss"]
    shown = cell_html(DisplayStatus(step=30, total=30), table, ended=True)
    assert "21 earlier rows not shown" in shown
    assert shown.count("font-weight:600") == 3
    table.cut(2)
    assert table.shown() == [1, 2]
    assert cell_text(DisplayStatus(), LogTable(), ended=False) == "0 steps"
