"""Functions that tests sweep over, in processes that import no Keras."""

import os
import time
from pathlib import Path
from typing import Any


def parabola(values: dict[str, Any], directory: Path) -> float:
    """Lowest at 3."""
    return (values["x"] - 3) ** 2


def two(values: dict[str, Any], directory: Path) -> dict[str, float]:
    """Two metrics that cannot both be low."""
    return {"left": float(values["x"]), "right": 10.0 - values["x"]}


def broken(values: dict[str, Any], directory: Path) -> float:
    """Fails."""
    raise RuntimeError("no way")


def slow(values: dict[str, Any], directory: Path) -> dict[str, float]:
    """Counts to twenty with a file, where it goes on after a kill; its process and what it computed are on record."""
    with open(directory / "processes.txt", "a") as file:
        file.write(f"{os.getpid()}\n")
    path = directory / "count.txt"
    count = int(path.read_text() or 0) if path.exists() else 0
    while count < 20:
        time.sleep(0.02)
        count += 1
        path.with_suffix(".new").write_text(str(count))
        path.with_suffix(".new").rename(path)
    return {"value": (values["x"] - 3) ** 2, "count": float(count)}


def curve(values: dict[str, Any], directory: Path) -> float:
    """Trains visibly: a table of history whose loss is as good as `x` is low; SIGTERM ends it."""
    lines = ["step,validation_loss"]
    for step in range(1, 31):
        lines.append(f"{step},{values['x'] + 1 / step}")
        (directory / "history.csv").write_text("\n".join(lines) + "\n")
        time.sleep(0.1)
    return values["x"]


def undefined_at_two(values: dict[str, Any], directory: Path) -> float:
    """Fails at 2, where Python marks the place in the line."""
    return 1 / (values["x"] - 2)


def by_name(x: float, penalty: float = 0.0, *, model_dir: Path) -> float:
    """Takes its values as parameters."""
    (model_dir / "called.txt").write_text(f"{x} {penalty}")
    return (x - 3) ** 2 + penalty
