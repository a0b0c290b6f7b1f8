"""`training.png`: the loss and, where there is one, an accuracy over the epochs; in a notebook, shown as it grows."""

import base64
import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.notebook import CellOutput

_ACCURACIES = ("acc", "accuracy")


def draw(history: Mapping[str, Sequence[float]], title: str = "") -> bytes | None:
    """Returns the curves as a PNG; None where matplotlib is not installed.

    Nothing of matplotlib's global state is touched: no display is needed, no figure stays open.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    held = io.BytesIO()
    _figure(history, title).savefig(held, format="png", dpi=100)
    return held.getvalue()


def _figure(history: Mapping[str, Sequence[float]], title: str) -> Any:
    """Returns the loss and, where there is a metric, beside it an accuracy, else the first metric."""
    names = [name for name in history if name != "loss" and not name.startswith("val_")]
    accuracies = [name for name in names if name in _ACCURACIES or name.endswith("accuracy")]
    shown = ["loss", *[*accuracies, *names][:1]]
    size = (5 * len(shown), 4)
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        _panel(axes, {curve: history[curve] for curve in (name, f"val_{name}") if curve in history}, name)
    figure.suptitle(title)
    return figure


def _panel(axes: Any, curves: Mapping[str, Sequence[float]], label: str) -> None:
    for name, values in curves.items():
        style = "--" if name.startswith("val_") else "-"
        axes.plot(
            range(1, len(values) + 1), values, style, marker=".", label="validation" if style == "--" else "train"
        )
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # an epoch is a whole number
    axes.set_ylabel(label)
    if curves:
        axes.legend()


class NotebookPlot:
    """Shows curves below the running cell, updated after each epoch; does nothing outside a notebook."""

    def __init__(self) -> None:
        self._output = CellOutput()

    @property
    def is_shown(self) -> bool:
        """Whether this process is a notebook's kernel."""
        return self._output.is_shown

    def show(self, png: bytes | None) -> None:
        """Shows a picture in place of the one before."""
        if png is not None:
            self._output.show({"image/png": base64.b64encode(png).decode("ascii")})
