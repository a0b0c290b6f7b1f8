"""Draws the curves of docs/gallery.md: trains each experiment that ships and is small, and plots its history.

python -m tools.docs.gallery                     # all of them: some minutes on two cores
python -m tools.docs.gallery regression/sine     # one
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "gallery"

EXPERIMENTS = {
    "mnist/mlp": "accuracy",
    "mnist/augmented": "accuracy",
    "regression/sine": "mae",
    "text/tiny": "accuracy",
    "text/tags": "accuracy",
    "text/gpt2_tiny": "loss",
    "multitask/digits": "digit/accuracy",
}
"""What is trained, and the metric that is drawn."""


def main() -> None:
    """Trains and draws what the command line names, or everything."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or EXPERIMENTS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "everstep", "train", name, "--backend", "jax", "--no-export"]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run([*command, "--model-dir", folder], check=True, env=environment, stdout=subprocess.DEVNULL)
            with open(Path(folder) / "history.csv") as file:
                rows = list(csv.DictReader(file))
        picture = FOLDER / f"{name.replace('/', '-')}.svg"
        picture.write_text(draw(rows, EXPERIMENTS[name]), "utf-8")
        print(picture, "ends at", {key: value for key, value in rows[-1].items() if value and "second" not in key})


def curve(rows: list[dict[str, str]], name: str) -> list[tuple[float, float]]:
    """Returns (step, value) of a column, where it has a value."""
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def draw(rows: list[dict[str, str]], metric: str) -> str:
    """Returns an SVG with the metric in training and validation."""
    train, validation = (
        curve(rows, "training_loss" if metric == "loss" else metric),
        curve(rows, f"validation_{metric}"),
    )
    points = [*train, *validation]
    steps, low, high = max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points)

    def place(point: tuple[float, float]) -> str:
        return f"{46 + 240 * point[0] / steps:.1f},{118 - 96 * (point[1] - low) / ((high - low) or 1):.1f}"

    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(map(place, points))}"/>'
        for points, colour in ((train, "#26a69a"), (validation, "#ef6c00"))
        if points
    )
    text = '<text font-family="sans-serif" font-size="11" fill="#888" x="{}" y="{}" text-anchor="{}">{}</text>'
    labels = [(42, 122, "end", f"{low:.3g}"), (42, 26, "end", f"{high:.3g}"), (46, 136, "start", "0")]
    labels += [(286, 136, "end", f"{steps:,.0f} steps"), (46, 14, "start", metric)]
    frame = '<path fill="none" stroke="#888" d="M46 20 V118 H288"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="300" viewBox="0 0 300 142">{frame}{lines}'
        + "".join(text.format(*label) for label in labels)
        + "</svg>\n"
    )


if __name__ == "__main__":
    main()
