"""Hostile configurations: nothing outside the allowlist is imported, nothing is run, written, sent or removed.

One process takes all of them, with an audit hook from Python itself as the witness (see `hostile_child`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from . import sample_project

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PAYLOADS = yaml.safe_load((HERE / "hostile_payloads.yaml").read_text(encoding="utf-8"))
NAMES = [
    f"{kind}: {name}" for kind, group in {**PAYLOADS, "gin-file": PAYLOADS["gin"]}.items() for name in group
]  # what comes as a gin parameter comes as a gin file too


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    paths = sample_project.write(folder / "home")
    (folder / "secret.txt").write_text("one\ntwo\n")
    names = [HERE / "hostile_payloads.yaml", folder / "canary", folder / "secret.txt"]
    done = subprocess.run(
        [sys.executable, "-B", str(HERE / "hostile_child.py"), *map(str, names)],
        cwd=folder / "home",
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "PYTHONPATH": os.pathsep.join([*paths, str(HERE.parents[1] / "src")]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return {"canary": (folder / "canary").exists(), **json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("name", NAMES)
def test_payload(report, name):
    outcome, events = report["found"][name]
    assert (outcome, events) == ("data" if "data" in name.partition(":")[0] else "refused", [])


def test_there_are_enough_payloads(report):
    assert len(NAMES) == len(set(NAMES)) == len(report["found"]) >= 60


def test_nothing_was_left_behind(report):
    assert not report["canary"]
    assert report["written"] == []


def test_the_hook_sees_what_it_should(report):
    blind = [name for name, (_, events) in report["probes"].items() if not events]
    assert not blind
