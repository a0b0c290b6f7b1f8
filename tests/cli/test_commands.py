"""The table of commands: what other packages add to it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PACKAGE = {
    "my_commands.py": """
        from everstep.cli import Command, experiment_keys

        DIGITS = Command("Digits", "Print some digits.", "my_digits", experiment_keys)
    """,
    "my_digits.py": """
        from everstep.cli import new_app

        app = new_app()


        @app.command()
        def digits(count: int) -> None:
            print(*range(count))
    """,
    "my_commands-1.0.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: my-commands
        Version: 1.0
    """,
    "my_commands-1.0.dist-info/entry_points.txt": """
        [everstep.commands]
        digits = my_commands:DIGITS
        broken = my_commands:Gone
    """,
}


def everstep(folder: Path, *words: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "everstep", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )


def test_a_package_adds_a_command(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    shown = everstep(tmp_path, "--help")
    assert "Digits:\n  digits       Print some digits.\n" in shown.stdout
    assert "command 'broken' (my_commands:Gone) is skipped: AttributeError" in shown.stderr
    assert everstep(tmp_path, "digits", "3").stdout == "0 1 2\n"
    wrong = everstep(tmp_path, "digits", "--epochs", "3")
    assert wrong.returncode == 2
    assert "a value is written without dashes: trainer.epochs=3" in wrong.stderr
