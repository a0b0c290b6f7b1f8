"""`make check` is quick because files that train or start processes are marked; `conftest.py` sees to it."""

import os
import sys
from pathlib import Path

import pytest
from tests import conftest


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("import pytest\n\npytestmark = pytest.mark.slow\n", True),
        ("pytestmark = [pytest.mark.usefixtures('here'), pytest.mark.backend]\n", True),
        ("pytestmark = pytest.mark.filterwarnings('ignore:pytest.mark.slow')\n", False),
        ("@pytest.mark.backend\ndef test_one():\n    subprocess.Popen\n", False),
    ],
)
def test_a_file_is_slow_if_it_is_marked_as_a_whole(text: str, slow: bool, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text)
    assert conftest.is_slow(tmp_path / "test_it.py") == slow


@pytest.mark.parametrize(
    ("event", "program", "noted"),
    [
        ("subprocess.Popen", sys.executable, True),
        ("subprocess.Popen", str(Path(sys.executable).with_name("everstep")), True),
        ("os.posix_spawn", os.fsencode(sys.executable), True),
        ("os.fork", None, True),
        ("subprocess.Popen", "git", False),
        ("open", sys.executable, False),
    ],
)
def test_a_python_that_is_started_is_noted(event: str, program: str | bytes | None, noted: bool) -> None:
    conftest._slow_events.clear()
    conftest._note_processes(event, (program, []))
    assert bool(conftest._slow_events) == noted
