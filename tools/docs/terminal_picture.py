"""Makes `terminal.svg`: a real run in a real terminal, as its screen is when it has trained for a while.

    python tools/docs/terminal_picture.py

A run is killed and started again first, so that there are attempts and goodput to show.
"""

import io
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from tests.servers.terminal import Terminal

COLUMNS, ROWS = 122, 24
VALUES = ("trainer.train_steps=6000", "trainer.validation_interval=500", "trainer.checkpoint_interval=500")
COMMAND = ["train", "mnist/mlp", "--backend", "jax", "--model-dir", "runs/mlp", *VALUES]


def main() -> None:
    """Trains, kills, trains again, and takes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        _train(folder, "1,700/6,000", signal.SIGKILL)
        screen = _train(folder, "3,900/6,000", signal.SIGTERM)
    out = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    out.print(Text.from_ansi(screen), end="")
    drawn = out.export_svg(title="everstep train mnist/mlp --model-dir runs/mlp")
    target = Path(__file__).parents[2] / "docs" / "images" / "terminal.svg"
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), "utf-8")  # nothing is fetched
    print(target)


def _train(folder: str, until: str, end: signal.Signals) -> str:
    """Returns the screen as it was when a text appeared; then ends the run by a signal."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment = {**inherited, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "everstep", *COMMAND]
    with Terminal(command, environment, COLUMNS, ROWS, folder) as terminal:
        terminal.wait_for(lambda text: until in text and "evaluating" not in text, 300)
        seen = terminal.screen.ansi(ROWS - 4)
        terminal.process.send_signal(end)
        terminal.end()
    return seen


if __name__ == "__main__":
    main()
