"""The picture of a run: what it shows, and that it fits."""

import itertools
import math

import pytest

from everstep.tracking.live_display import DisplayStatus, frame
from everstep.tracking.metric_history import LiveMetrics, LiveRate
from everstep.tracking.number_text import clock_time, rate_text
from everstep.tracking.styled_lines import Painter, Style, width_of

LONG = "a_very_long_head_name/" * 4 + "accuracy"
SIZES = [*itertools.product((1, 8, 20, 40, 79, 200), (1, 3, 30), (0, 1))]


def metrics(*logs, kind="validation"):
    found = LiveMetrics()
    for step, one in enumerate(logs, start=1):
        found.add(100 * step, one, kind)
    return found


def texts(status, width=100, height=20, plain=False):
    return [line.plain for line in frame(status, width, height, plain)]


def full_status():
    found = LiveMetrics()
    for step, loss in ((100, 0.9), (200, 0.4), (300, 0.5)):
        found.add(step, {"training_loss": loss / 2, "accuracy": 1 - loss, "learning_rate": 0.001}, "train")
        found.add(step, {"validation_loss": loss, "accuracy": 1 - loss, LONG: math.nan}, "validation")
    return DisplayStatus(
        step=1400,
        total=4000,
        epoch=1.866,
        rate=812.3,
        left=192.0,
        gone=104.0,
        rates={**found.rates, "samples_per_second": 26_000.0, "data_wait": 0.021, "mfu": 0.413},
        metrics=found,
        checkpoint=(1000, 12.0),
        attempts=2,
        goodput=0.973,
        system={"system/cpu_utilization_percentage": 71.0, "system/gpu_0_utilization_percentage": 93.0},
    )


def test_a_run_that_counts_epochs_has_places_in_epochs():
    status = full_status()
    status.epoch, status.epochs, status.steps_per_epoch = 14.0, 40, 100
    lines = texts(status, 140)
    assert lines[0].endswith("  35 %  1,400/4,000  epoch 14.00 of 40")
    assert lines[2].split()[5:10] == ["best", "0.4", "at", "epoch", "2"]
    assert lines[5].startswith("checkpoint epoch 10, 12 s ago")
    status.checkpoint = 1010, None  # in an epoch
    assert texts(status, 140)[5].startswith("checkpoint 1,010 ")


def test_the_full_display():
    lines = texts(full_status(), 140)
    assert lines[0].endswith("  35 %  1,400/4,000  epoch 1.87")
    assert lines[0].startswith("━" * 21 + "╸" + "─" * 38 + "  ")
    speed = ["812 steps/s", "0:03:12 left", "26.0k samples/s", "mfu 41 %", "data wait 2 %", "0:01:44 gone"]
    assert lines[1].split(" · ") == [*speed, "learning rate 0.001"]
    columns = lines[2].split()
    assert columns[:9] == ["loss", "train", "0.25", "validation", "0.5", "best", "0.4", "at", "200"]
    assert columns[9] == "█▁▂"
    assert lines[3].split()[:9] == ["accuracy", "train", "0.5", "validation", "0.5", "best", "0.6", "at", "200"]
    assert "nan" in lines[4]
    assert lines[5] == "checkpoint 1,000, 12 s ago · attempt 2 · goodput 97.3 %"
    assert lines[6] == "cpu 71 % · gpu 0 93 %"
    assert len({line.index("validation ") for line in lines[2:5]}) == 1, "columns line up"


@pytest.mark.parametrize(("width", "height", "plain"), SIZES)
def test_it_fits_every_terminal(width, height, plain):
    lines = texts(full_status(), width, height, bool(plain))
    assert 1 <= len(lines) <= height
    assert all(width_of(line) <= width for line in lines)
    assert not plain or all(line.isascii() for line in lines)


def test_a_narrow_terminal_omits_the_least_important():
    narrow = texts(full_status(), 60)
    assert "best 0.4 at 200" in narrow[2]
    assert "█" not in narrow[2]
    assert narrow[1] == "812 steps/s · 0:03:12 left · 26.0k samples/s · mfu 41 %"


def test_an_unknown_number_of_steps():
    assert texts(DisplayStatus(step=1200, total=None, rate=3.0))[:2] == ["1,200 steps", "3.00 steps/s"]


def test_nothing_is_known_yet():
    lines = texts(DisplayStatus(step=0, total=10, phase="starting"))
    assert lines[0].endswith("  0 %  0/10  starting")
    assert lines[-1] == "nothing saved yet · attempt 1"


def test_values_that_are_not_finite_are_shown_and_never_best():
    found = metrics({"loss": 0.5}, {"loss": math.nan}, {"loss": -math.inf}, {"loss": 0.7})
    assert found.by_name["loss"].best == (100, 0.5)
    (line,) = [line for line in frame(DisplayStatus(metrics=metrics({"loss": math.nan})), 80, 9) if "nan" in line.plain]
    assert any(line.plain[span.start : span.end] == "nan" and span.style == Style.BAD for span in line.spans)
    assert "×" in texts(DisplayStatus(metrics=found))[2]
    extremes = metrics({"loss": 1.7e308}, {"loss": -1.7e308})
    assert "█▁" in texts(DisplayStatus(metrics=extremes))[2], "their difference is no float"


def test_a_name_without_a_direction_has_no_best():
    assert [metric.best for metric in metrics({"psnr": 1.0}, {"psnr": 2.0}).all()] == [None]


def test_more_metrics_than_there_is_room_for():
    many = metrics({f"metric_{number}_loss": 1.0 for number in range(50)})
    lines = texts(DisplayStatus(metrics=many), height=30)
    assert len(lines) == 11
    assert lines[-2] == "and 43 more"
    assert len(texts(DisplayStatus(metrics=many), height=6)) == 6


def test_long_names_keep_their_beginning_and_their_end():
    (line,) = [line for line in texts(DisplayStatus(metrics=metrics({LONG: 0.5})), 80) if "0.5" in line]
    assert line.startswith("a_very_long")
    assert "accuracy   validation 0.5" in line


def test_special_characters_do_not_break_lines():
    special = metrics({"損失\x1b[31m\nloss": 0.5})
    lines = texts(DisplayStatus(metrics=special), 80)
    assert all(line.isprintable() for line in lines)
    assert width_of("損失") == 4


def test_without_colours_bold_and_dim_stay(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = frame(full_status(), 100, 20)[0]
    assert "\x1b[32m" in Painter().paint(line)
    monkeypatch.setenv("NO_COLOR", "1")
    without = Painter().paint(line)
    assert "32m" not in without
    assert "\x1b[1m" in without


def test_the_rate_ignores_time_without_training():
    rate = LiveRate()
    assert rate.at(0.0, 0) is None
    assert rate.at(30.0, 1) is None, "by then it has compiled"
    assert rate.at(31.0, 101) == 100
    assert rate.at(41.0, 101, resting=True) == 100, "an evaluation"
    assert rate.at(42.0, 201) == 100
    assert rate.at(60.0, 50) is None, "it was rolled back"


def test_slow_steps_have_a_rate():
    rate = LiveRate()
    seen = [rate.at(float(second), second // 60) for second in range(400)]
    assert seen[-1] == pytest.approx(1 / 60)


def test_numbers_as_text():
    assert [clock_time(s) for s in (0.4, 59, 61, 3723, 90_000, math.inf)] == [
        *("0 s", "59 s", "0:01:01", "1:02:03", "1 d 1:00:00", "-")
    ]
    assert [rate_text(n, "steps/s") for n in (0.0123, 8.2, 99.9, 812.3, 12_400, 3.2e7, math.nan)] == [
        *("0.01 steps/s", "8.20 steps/s", "99.9 steps/s", "812 steps/s", "12.4k steps/s", "32.0M steps/s"),
        "nan steps/s",
    ]
