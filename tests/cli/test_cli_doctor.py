"""`everstep doctor`."""

import json
import sys
from typing import Any

import pytest

from everstep.cli import doctor
from everstep.cli.doctor import Check
from everstep.engine import backend

pytestmark = pytest.mark.slow


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leaves out what takes seconds."""

    def result(ok: bool) -> None:
        monkeypatch.setattr(doctor, "backends", lambda _: [Check("backend", "jax", ok, "as told")])

    return result


@pytest.mark.parametrize("works", [True, False])
def test_doctor_succeeds_if_a_backend_works(everstep: Any, quick: Any, works: bool) -> None:
    quick(works)
    outcome = everstep("doctor")
    assert outcome.code == (0 if works else 1)
    assert f"{'✓' if works else '✗'} backend  jax" in outcome.out
    assert "✓ version  keras" in outcome.out
    assert "GiB free" in outcome.out
    report = json.loads(everstep("doctor", "--json").out)
    assert report["ok"] is works
    assert {check["group"] for check in report["checks"]} == {"backend", "version", "extra", "path"}


def test_extras_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": None, "tensorflow": "2.1.0"}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "999"))
    found = {check.name: check for check in doctor.extras()}
    assert found["torch"] == Check("extra", "torch", False, "pip install 'everstep[torch]' (lacks torch)")
    assert "tensorflow<3,>=2.20, found 2.1.0" in found["tensorflow"].text
    assert "torch" in found["all"].text


def test_a_bad_choice_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "abacus")
    check = doctor.chosen_backend()
    assert not check.ok
    assert check.text.startswith("KERAS_BACKEND: received 'abacus', unknown backend")


def test_a_broken_backend_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "installed", lambda: ["first", "second"])
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    assert [check.ok for check in doctor.backends({})] == [False, False]
    monkeypatch.setattr(doctor, "_PROBE", "import time; time.sleep(60)")
    checks = doctor.backends({}, seconds=0.2)
    assert "no answer within 0.2 seconds" in checks[0].text


@pytest.mark.full
def test_backends_are_tried_for_real(shell: Any) -> None:
    outcome = shell("doctor")
    assert outcome.code == 0
    assert "✓ backend  jax " in outcome.out
    assert "devices cpu:0" in outcome.out
    assert outcome.err == ""
