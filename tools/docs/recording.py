"""Records the core of the first hour in a real terminal: train, kill, resume, report.

    python -m tools.docs.recording

Writes `docs/images/recording.cast`, for `asciinema play`, and `recording.svg`, an animation of the same screens. A
shell runs the commands as they are shown; the kill comes from outside, as it does.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text
from tests.servers.terminal import Screen, Terminal

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLUMNS, ROWS = 118, 24
TRAIN = "everstep train mnist/mlp --model-dir runs/mlp"
TITLE = "train, kill -9, the same command again, report"

Event = tuple[float, str]

LONGEST_PAUSE, FRAME, HOLD = 1.0, 0.3, 6.0
"""Seconds: of a pause that is kept, of a frame at least, and of the last one."""

CELL, LINE, SIZE, EDGE, HEAD = 9.6, 19.0, 16, 14.0, 34.0
"""Pixels: of a letter and of a line, of the font, around the text and of the title."""


class Recorder(Terminal):
    """A shell in a terminal; keeps when it wrote what."""

    def __init__(self, folder: str) -> None:
        self.events: list[Event] = []
        self._begin = time.monotonic()
        prompt = r"\[\e[J\e[1;32m\]$\[\e[0m\] "  # clears what is below, as that of zsh does
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": folder,
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "PS1": prompt,
            "KERAS_BACKEND": "jax",
        }
        super().__init__(["bash", "--norc", "--noprofile", "-i"], environment, COLUMNS, ROWS, folder)

    def read(self, seconds: float) -> bool:
        """Reads what the shell has written, and notes when."""
        known = len(self.raw)
        more = super().read(seconds)
        if new := self.raw[known:]:
            self.events.append((time.monotonic() - self._begin, new))
        return more

    def pause(self, seconds: float) -> None:
        """Looks at the screen for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.02)

    def enter(self, command: str) -> None:
        """Types a command as a person does."""
        for key in command:
            self.type(key)
            self.pause(0.03)
        self.pause(0.4)
        self.type("\n")

    def wait_for_prompt(self, count: int) -> None:
        """Waits until the shell has asked for a command so many times."""
        self.wait_for(lambda text: sum(line.startswith("$") for line in text.split("\n")) >= count, 300)


def record() -> list[Event]:
    """Returns what the terminal showed."""
    with tempfile.TemporaryDirectory() as folder, Recorder(folder) as shell:
        shell.wait_for_prompt(1)
        shell.pause(0.5)
        shell.enter(TRAIN)
        shell.wait_for("train | step:  2300")
        os.kill(_child(shell.process.pid), signal.SIGKILL)
        shell.wait_for_prompt(2)
        shell.pause(1.0)
        shell.enter(f"{TRAIN}   # the same command again")
        shell.wait_for_prompt(3)
        shell.pause(1.0)
        shell.enter("everstep report runs/mlp")
        shell.wait_for_prompt(4)
        shell.pause(1.0)
        return shell.events


def _child(process: int) -> int:
    """Returns the program that a shell runs in the foreground."""
    [child] = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(child)


def quickened(events: list[Event]) -> list[Event]:
    """Returns the events without what is longer than the longest pause."""
    found, late, before = [], 0.0, 0.0
    for at, text in events:
        late += max(0.0, at - before - LONGEST_PAUSE)
        found.append((at - late, text))
        before = at
    return found


def cast(events: list[Event]) -> str:
    """Returns an asciinema v2 file."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE, "idle_time_limit": LONGEST_PAUSE}
    return "".join(f"{json.dumps(each)}\n" for each in (header, *([round(at, 3), "o", text] for at, text in events)))


def events_of(text: str) -> list[Event]:
    """Returns the events of an asciinema v2 file."""
    return [(at, shown) for at, _, shown in map(json.loads, text.splitlines()[1:])]


def frames(events: list[Event]) -> list[tuple[float, list[str]]]:
    """Returns the screens that were shown, with the seconds of each."""
    screen, found = Screen(COLUMNS, ROWS), []
    for number, (at, text) in enumerate(events):
        screen.feed(text)
        shown_until = events[number + 1][0] if number + 1 < len(events) else at + HOLD
        begin = found[-1][0] if found else None
        rows = screen.ansi(ROWS).split("\n")
        if begin is not None and at - begin < FRAME and shown_until - at < FRAME:
            continue
        if not found or rows != found[-1][1]:
            found.append((at, rows))
    ends = [at for at, _ in found[1:]] + [found[-1][0] + HOLD]
    return [(end - at, rows) for (at, rows), end in zip(found, ends, strict=True)]


def animation(shown: list[tuple[float, list[str]]]) -> str:
    """Returns an SVG: all screens below each other, of which a window shows one at a time."""
    width, height = 2 * EDGE + COLUMNS * CELL, HEAD + EDGE + ROWS * LINE
    names: dict[str, str] = {}
    film = []
    for number, (_, rows) in enumerate(shown):
        for row, text in enumerate(rows):
            if drawn := _row(text):
                name = names.setdefault(drawn, f"r{len(names)}")
                film.append(f'<use href="#{name}" y="{(number * ROWS + row) * LINE:g}"/>')
    seconds = sum(each for each, _ in shown)
    moves, at = [], 0.0
    for number, (each, _) in enumerate(shown):
        moves.append(f"{100 * at / seconds:.2f}%{{transform:translateY({-number * ROWS * LINE:g}px)}}")
        at += each
    last = f"transform:translateY({-(len(shown) - 1) * ROWS * LINE:g}px)"
    style = (
        f"text{{font:{SIZE}px Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:{_fill(None)}}}"
        f".film{{{last};animation:film {seconds:.2f}s step-end infinite}}@keyframes film{{{''.join(moves)}}}"
        f"@media (prefers-reduced-motion:reduce){{.film{{animation:none}}}}"
    )
    lights = "".join(
        f'<circle cx="{20 + 20 * number}" cy="17" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    title = f'<text x="{width / 2:g}" y="22" text-anchor="middle">{escape(TITLE)}</text>'
    rows = "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in names.items())
    size = f'width="{width:g}" height="{height:g}"'
    window = f'x="{EDGE:g}" y="{HEAD:g}" width="{COLUMNS * CELL:g}" height="{ROWS * LINE:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(TITLE)}"><style>{style}</style><defs>{rows}</defs>',
        f'<rect {size} rx="8" fill="{THEME.background_color.hex}"/>{lights}{title}<svg {window}><g class="film">',
        *film,
        "</g></svg></svg>\n",
    ]
    return "\n".join(parts)


def _row(ansi: str) -> str:
    """Returns the texts of one line, each with its colour and place."""
    text, drawn = Text.from_ansi(ansi), []
    letters = text.plain
    styles = [Style()] * len(letters)
    for span in text.spans:
        for place in range(span.start, span.end):
            styles[place] = styles[place] + (span.style if isinstance(span.style, Style) else Style.parse(span.style))
    begin = 0
    for place in range(1, len(letters) + 1):
        if place < len(letters) and styles[place] == styles[begin]:
            continue
        word, style = letters[begin:place], styles[begin]
        if word.strip():
            left = begin + len(word) - len(word.lstrip())
            word = word.strip()
            look = f"fill:{_fill(style)}{';font-weight:bold' if style.bold else ''}" if style else ""
            box = f'x="{left * CELL:g}" y="15" textLength="{len(word) * CELL:g}"'
            styled = f' style="{look}"' if look else ""
            drawn.append(f"<text {box}{styled}>{escape(word)}</text>")
        begin = place
    return "".join(drawn)


def _fill(style: Style | None) -> str:
    """Returns the colour of a text; of a dim one a colour between its own and the background."""
    colour = style.color.get_truecolor(THEME) if style and style.color else THEME.foreground_color
    if style and style.dim:
        colour = type(colour)(*((a + b) // 2 for a, b in zip(colour, THEME.background_color, strict=True)))
    return "#" + "".join(f"{part:02x}" for part in colour)


def main() -> None:
    """Records, and writes both files."""
    recorded = cast(quickened(record()))
    events = events_of(recorded)
    (IMAGES / "recording.cast").write_text(recorded, "utf-8")
    (IMAGES / "recording.svg").write_text(animation(frames(events)), "utf-8")
    for name in ("recording.cast", "recording.svg"):
        print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size:,} bytes")
    print(f"{len(frames(events))} frames, {events[-1][0]:.0f} s")


if __name__ == "__main__":
    main()
