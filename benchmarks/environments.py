"""Virtual environments of peers whose packages do not fit beside ours; `--create-environments` makes them.

They are under `~/.cache/everstep-benchmarks`, or `$EVERSTEP_BENCHMARKS`. A peer without an environment is left out, and
a line says so.
"""

import os
import subprocess
import sys
from pathlib import Path

PEERS: dict[str, list[list[str]]] = {
    # Model Garden's wheel has Orbit; its other requirements are not needed for the loop.
    "orbit": [["tensorflow>=2.20,<3", "tf-keras>=2.20,<3", "tensorboard"], ["--no-deps", "tf-models-official==2.20.0"]],
    "lightning": [["torch", "lightning>=2.6,<3", "numpy"]],
}
"""What is installed, by peer: the arguments of `pip install`, one call after the other."""


def interpreter(peer: str) -> Path | None:
    """Returns the Python of a peer's environment; None if there is no complete one."""
    folder = _folder(peer)
    return folder / "bin" / "python" if (folder / "complete").exists() else None


def create(peer: str) -> Path:
    """Creates a peer's environment, unless it exists; returns its Python."""
    found = interpreter(peer)
    if found is not None:
        return found
    folder = _folder(peer)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for arguments in PEERS[peer]:
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments], check=True)
    (folder / "complete").touch()
    return folder / "bin" / "python"


def _folder(peer: str) -> Path:
    cache = os.environ.get("EVERSTEP_BENCHMARKS") or Path.home() / ".cache" / "everstep-benchmarks"
    return Path(cache) / peer
