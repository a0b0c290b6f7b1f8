"""Hostile files with weights: nothing in them is run, nothing outside them is read, and memory stays small.

One subprocess loads all of them under an audit hook of Python (see `hostile_artefacts_child`).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PREFIXES = "keras|h5|tf|own|folder"
PAYLOADS = re.findall(
    rf"^    def ((?:{PREFIXES})_\w+)\(", (HERE / "hostile_artefacts.py").read_text("utf-8"), re.MULTILINE
)
HARMLESS_HERE = {  # the harmful part is not read, and the rest are weights that fit
    "keras_lambda": "loaded 2 of 2",
    "keras_saved_model_layer": "loaded 2 of 2",
    "keras_vocabulary_of_a_file": "loaded 2 of 2",
    "h5_shape_bomb": "loaded 1 of 2",
    "h5_wide_bomb": "loaded 1 of 2",
    "h5_that_holds_itself": "loaded 2 of 2",
    "h5_objects": "loaded 1 of 2",
    "tf_graph_that_reads": "loaded 2 of 2",
    "own_shape_bomb": "loaded 1 of 2",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside").mkdir()
    names = [folder / "files", folder / "canary", folder / "outside" / "secret"]
    path = [str(HERE.parents[1] / "src"), os.environ["PYTHONPATH"]]
    done = subprocess.run(
        [sys.executable, "-B", str(HERE / "hostile_artefacts_child.py"), *map(str, names)],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PAYLOADS)
def test_payload(report, name):
    assert report["found"][name] == [HARMLESS_HERE.get(name, "refused"), [], False]


def test_every_payload_was_loaded(report):
    assert len(PAYLOADS) == len(report["found"]) >= 30


def test_nothing_was_run(report):
    assert not report["canary"]


def test_memory_stays_small(report):
    assert report["grown"] < 200 << 20


def test_the_audit_detects_harm(report):
    assert report["probes"] == dict.fromkeys(report["probes"], True)
