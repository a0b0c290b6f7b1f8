"""The recording of the front page: what it shows, and that the animation is drawn from the file for asciinema."""

import json
import re
from xml.etree import ElementTree

from tools.docs import recording

CAST = (recording.IMAGES / "recording.cast").read_text("utf-8")
DRAWN = (recording.IMAGES / "recording.svg").read_text("utf-8")


def test_a_killed_run_logs_the_same_numbers_again():
    header = json.loads(CAST.partition("\n")[0])
    assert (header["version"], header["width"], header["height"]) == (2, recording.COLUMNS, recording.ROWS)
    events = recording.events_of(CAST)
    assert [at for at, _ in events] == sorted(at for at, _ in events)
    shown = "".join(text for _, text in events)
    killed, found, resumed = shown.partition("Killed")
    assert found
    logged = re.compile(r"step:  2[123]00 .* (training_loss: [\d.]+ \| accuracy: [\d.]+) ")
    assert logged.findall(killed) == logged.findall(resumed)
    assert len(logged.findall(killed)) == 3
    assert "runs/mlp/reports/report.html" in resumed


def test_the_animation_is_the_recording():
    """Run `python -m tools.docs.recording` after a change."""
    assert recording.animation(recording.frames(recording.events_of(CAST))) == DRAWN
    names = {each.get("id") for each in ElementTree.fromstring(DRAWN).iter() if each.get("id")}
    assert names == set(re.findall(r'href="#(\w+)"', DRAWN))
    assert "prefers-reduced-motion" in DRAWN
