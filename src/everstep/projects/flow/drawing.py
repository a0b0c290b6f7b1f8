"""`training.png`: the loss and, where there is one, an accuracy over the epochs; in a notebook, shown as it grows."""

import importlib
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
        self._display = _display()
        self._handle: Any = None

    @property
    def is_shown(self) -> bool:
        """Whether this process is a notebook's kernel."""
        return self._display is not None

    def show(self, png: bytes | None) -> None:
        """Shows a picture in place of the one before."""
        if self._display is None or png is None:
            return
        image = self._display.Image(data=png, format="png")
        if self._handle is None:
            self._handle = self._display.display(image, display_id=True)
        else:
            self._handle.update(image)


def _display() -> Any:
    """Returns IPython's display module where this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display")
