"""What `training.png` shows."""

import pytest

from everstep.projects.flow.drawing import _figure, draw

pytest.importorskip("matplotlib")


def panels(**history):
    return [axes.get_ylabel() for axes in _figure(history, "").axes]


def test_a_panel_for_the_loss_and_one_for_an_accuracy():
    assert panels(loss=[1.0], mae=[1.0], val_mae=[1.0], top_accuracy=[0.5]) == ["loss", "top_accuracy"]
    assert panels(loss=[1.0], mae=[1.0], val_loss=[1.0]) == ["loss", "mae"]
    assert panels(loss=[1.0], val_loss=[1.0]) == ["loss"], "no empty panel without metrics"


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_epochs_are_whole_numbers(epochs):
    figure = _figure({"loss": [1.0] * epochs, "accuracy": [0.5] * epochs}, "")
    for axes in figure.axes:
        low, high = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert shown
        assert all(tick == int(tick) for tick in shown)


def test_it_is_a_png():
    assert draw({"loss": [1.0, 0.5]}, "title").startswith(b"\x89PNG")
