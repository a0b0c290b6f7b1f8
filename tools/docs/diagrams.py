"""Draws the diagrams of docs/concepts/, and the picture of the front page, as SVG files.

    python -m tools.docs.diagrams

The site puts them into its pages as they are, so that they take the colours of the theme, light or dark. Elsewhere they
are pictures with colours of their own.
"""

import math
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "concepts"

STYLE = """
.dg { --dg-fg: #24292f; --dg-soft: #57606a; --dg-fill: #f3f6f6; --dg-line: #00897b; font-family: sans-serif; }
@media (prefers-color-scheme: dark) {
  .dg { --dg-fg: #e6edf3; --dg-soft: #9da7b1; --dg-fill: #1f2a2a; --dg-line: #4db6ac; }
}
.dg text { fill: var(--md-default-fg-color, var(--dg-fg)); font-size: 14px; }
.dg .small { fill: var(--md-default-fg-color--light, var(--dg-soft)); font-size: 12px; }
.dg .bold { font-weight: bold; }
.dg .box { fill: var(--md-code-bg-color, var(--dg-fill)); stroke: var(--dg-line); stroke-width: 1.5; }
.dg .strong { fill: var(--dg-line); fill-opacity: 0.18; stroke: var(--dg-line); stroke-width: 1.5; }
.dg .lost { fill: none; stroke: #c62828; stroke-width: 1.5; stroke-dasharray: 4 3; }
.dg .line { fill: none; stroke: var(--dg-line); stroke-width: 1.5; }
.dg .dot { fill: var(--dg-line); }
.dg .curve { fill: none; stroke: var(--md-default-fg-color--light, var(--dg-soft)); stroke-width: 2.5; }
.dg .first { stroke: var(--dg-line); }
.dg .second { stroke: #ef8e35; }
.dg .gone { stroke: #c62828; stroke-width: 4; stroke-dasharray: 3 3; }
.dg .cross { stroke: #c62828; stroke-width: 4; stroke-linecap: round; }
.dg .mono { font-family: monospace; font-size: 13px; }
""".replace("\n\n", "\n").strip()


class Drawing:
    """Boxes, arrows and texts, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, description: str) -> None:
        self.size, self.description, self.parts = (width, height), description, []

    def box(self, x: float, y: float, w: float, h: float, title: str = "", *lines: str, kind: str = "box") -> None:
        """A box with a title and smaller lines below it, centred."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>')
        top = y + h / 2 + 5 - 8 * len(lines)
        if title:
            self.text(x + w / 2, top, title, "bold", "middle")
        for number, line in enumerate(lines, 1):
            self.text(x + w / 2, top + 17 * number, line, "small", "middle")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """One line of text."""
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through points, with a head at the last."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#dg-head)"/>')

    def dot(self, x: float, y: float) -> None:
        """A checkpoint."""
        self.parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="6"/>')

    def svg(self) -> str:
        """The file."""
        width, height = self.size
        head = '<path d="M0 0 L8 4 L0 8 z" fill="#26a69a"/>'
        return "\n".join(
            [
                f'<svg class="dg" xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {height}" '
                'role="img" '
                f'aria-label="{escape(self.description)}">',
                f"<style>{STYLE}</style>",
                f'<defs><marker id="dg-head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{head}'
                "</marker></defs>",
                *self.parts,
                "</svg>\n",
            ]
        )


def run() -> Drawing:
    """A run: one directory, several attempts."""
    d = Drawing(820, 250, "A run of three attempts: killed, stopped, finished. Each starts at the newest checkpoint.")
    scale = 0.22
    attempts = [
        ("attempt 1: killed", 0, 1200, 30),
        ("attempt 2: SIGTERM", 1000, 2300, 75),
        ("attempt 3: done", 2300, 3000, 120),
    ]
    for name, begin, end, y in attempts:
        d.box(90 + begin * scale, y, (end - begin) * scale, 30, name)
    d.box(90 + 1000 * scale, 30, 200 * scale, 30, kind="lost")
    d.text(90 + 1210 * scale, 49, "200 steps lost, trained again", "small")
    d.text(20, 49, "steps", "small")
    d.parts.append('<path class="line" d="M90 170 L770 170"/>')
    for step in (0, 1000, 2000, 2300, 3000):
        if step:
            d.dot(90 + step * scale, 170)
        d.text(90 + step * scale, 195, f"{step:,}", "small", "middle")
    d.text(
        90,
        225,
        "● checkpoints. One directory holds them all: config.yaml, run.json, history.csv, checkpoints/, export/",
        "small",
    )
    return d


def task() -> Drawing:
    """A task: what you write, and who calls it."""
    d = Drawing(820, 270, "A task: the methods you write, when the loop calls them, and what they return.")
    d.box(20, 20, 300, 230, kind="box")
    d.text(40, 48, "Task: what you write", "bold")
    rows = [
        "build_model()",
        "build_inputs(params)",
        "build_losses(labels, outputs)",
        "build_metrics()",
        "train_step(…): optional",
    ]
    for number, row in enumerate(rows):
        d.box(40, 65 + 36 * number, 260, 28, row, kind="strong")
    d.box(500, 20, 300, 60, "Once, at the start", "model · data · metrics")
    d.box(500, 105, 300, 60, "Every step, compiled", "losses · gradients · update · metrics")
    d.box(500, 190, 300, 60, "Saved in every checkpoint", "each variable that the task holds")
    d.arrow((320, 50), (494, 50))
    d.arrow((320, 135), (494, 135))
    d.arrow((320, 220), (494, 220))
    d.text(345, 42, "the loop calls", "small")
    return d


def stream() -> Drawing:
    """A stream: batches with a position."""
    d = Drawing(
        820,
        210,
        "Data becomes a stream with a position; a thread reads ahead; a checkpoint has the position of training.",
    )
    d.box(20, 30, 170, 80, "Your data", "arrays, tf.data, Grain,", "files, generators")
    d.box(240, 30, 150, 80, "Stream", "batches and", "a position")
    d.box(440, 30, 150, 80, "Feed", "a thread reads ahead,", "places on the device")
    d.box(640, 30, 160, 80, "Training step", "takes the next batch", kind="strong")
    for x in (190, 390, 590):
        d.arrow((x, 70), (x + 44, 70))
    d.box(440, 150, 360, 44, "Checkpoint", "position of the last batch taken: epoch 3, batch 117", kind="box")
    d.arrow((720, 110), (720, 146))
    d.arrow((440, 172), (315, 172), (315, 116))
    d.text(304, 176, "resume: continue here", "small", "end")
    return d


def window() -> Drawing:
    """A window: steps, calls and what follows them."""
    d = Drawing(
        820,
        235,
        "A window of steps, run in a few compiled calls; at its end the run checks, logs, acts, evaluates and saves.",
    )
    for number in range(3):
        x = 20 + 180 * number
        d.box(x, 40, 165, 60, kind="box")
        for step in range(8):
            d.box(x + 8 + 19 * step, 58, 15, 24, kind="strong")
        d.text(x + 82, 118, f"compiled call {number + 1}", "small", "middle")
    d.text(20, 26, "one window: trainer.steps_per_loop steps, or an epoch of fit", "bold")
    for number, name in enumerate(["check NaN", "log", "act", "evaluate", "save"]):
        d.box(20 + 157 * number, 160, 137, 44, name, kind="strong" if name == "save" else "box")
        if number:
            d.arrow((157 * number, 182), (14 + 157 * number, 182))
    d.arrow((545, 70), (620, 70), (620, 135), (88, 135), (88, 154))
    d.text(640, 66, "sums stay on the device", "small")
    d.text(640, 84, "until the window ends", "small")
    d.text(
        20,
        226,
        "Save comes last: a checkpoint contains everything of its step, so a resumed run repeats none of it.",
        "small",
    )
    return d


def resume() -> Drawing:
    """Resume: what a checkpoint holds."""
    d = Drawing(
        820,
        290,
        "What a checkpoint holds, and how the next attempt checks and restores it.",
    )
    d.box(20, 20, 330, 250, kind="box")
    d.text(40, 48, "Checkpoint of step 1,000", "bold")
    rows = [
        "model, optimizer, metrics, seeds",
        "position in the data",
        "sums of the open window",
        "callbacks, hooks, actions",
        "random, np.random",
        "manifest: a digest of every file",
    ]
    for number, row in enumerate(rows):
        d.box(40, 62 + 33 * number, 290, 26, row, kind="strong")
    steps = [
        "verify every byte",
        "compare the configuration",
        "restore, in a fixed order",
        "cut logs beyond step 1,000",
        "train step 1,001",
    ]
    for number, name in enumerate(steps):
        d.box(500, 20 + 52 * number, 300, 40, f"{number + 1}. {name}")
        if number:
            d.arrow((650, 8 + 52 * number), (650, 18 + 52 * number))
    d.arrow((350, 145), (494, 145))
    d.text(422, 135, "same command", "small", "middle")
    return d


def kill() -> Drawing:
    """The front page: a run that is killed and started again ends as one that was left alone."""
    d = Drawing(
        820,
        290,
        "Two runs with the same loss curve: one left alone; one killed at step 700 and started again from the "
        "checkpoint of step 600. Both end with the same digest.",
    )

    def curve(begin: int, end: int, top: float, kind: str) -> None:
        points = [(x_of(step), y_of(step, top)) for step in range(begin, end + 1, 10)]
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        d.parts.append(f'<path class="curve {kind}" d="{path}"/>')

    def x_of(step: int) -> float:
        return 150 + step * 0.4

    def y_of(step: int, top: float) -> float:
        wobble = 5 * math.sin(step / 17) * math.sin(step / 41 + 1) * math.exp(-step / 900)
        return top + 78 * (1 - math.exp(-step / 260)) + wobble

    for top, name, line in ((25, "left alone", "one attempt"), (160, "killed", "and started again")):
        d.text(20, top + 32, name, "bold")
        d.text(20, top + 50, line, "small")
        d.parts.append(f'<path class="line" d="M140 {top + 98} L{x_of(1200)} {top + 98}" stroke-opacity="0.4"/>')
        for step in range(200, 1201, 200):
            d.dot(x_of(step), top + 98)
        d.text(x_of(1200) + 18, top + 60, "digest", "small")
        d.text(x_of(1200) + 18, top + 80, "5f2c7a90b1", "mono bold")
    curve(0, 1200, 25, "")
    curve(0, 600, 160, "first")
    curve(600, 1200, 160, "second")
    curve(610, 690, 160, "gone")
    x, y = x_of(700), y_of(700, 160)
    for sign in (1, -1):
        d.parts.append(f'<path class="cross" d="M{x - 7} {y - 7 * sign} L{x + 7} {y + 7 * sign}"/>')
    d.text(x, y - 18, "kill -9", "mono bold", "middle")
    d.text(x_of(600), 282, "the same command goes on from the last checkpoint ●", "small", "middle")
    d.text(x_of(1200) + 18, 164, "the same bits", "bold")
    return d


def main() -> None:
    """Writes all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in (run, task, stream, window, resume, kill):
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().svg(), "utf-8")


if __name__ == "__main__":
    main()
