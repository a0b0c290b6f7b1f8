"""`everstep doctor`."""

import json
import os
import sys
from typing import Any

import keras
import pytest

from everstep.cli import doctor
from everstep.cli.doctor import Check
from everstep.engine import backend
from everstep.extras import install_command

pytestmark = pytest.mark.slow


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leaves out what takes seconds."""

    def result(ok: bool) -> None:
        for name in ("backends", "quick_backends"):
            monkeypatch.setattr(doctor, name, lambda _: [Check("backend", "jax", ok, "as told")])

    return result


@pytest.mark.parametrize("works", [True, False])
def test_doctor_succeeds_if_a_backend_works(everstep: Any, quick: Any, works: bool) -> None:
    quick(works)
    outcome = everstep("doctor")
    assert outcome.code == (0 if works else 1)
    assert f"{'✓' if works else '✗'} backend  jax" in outcome.out
    assert "✓ version  keras" in outcome.out
    assert "GiB free" in outcome.out
    verdict = outcome.out.splitlines()[-1]
    assert verdict.startswith("Ready to train with jax (as told)" if works else "Not ready: no backend works")
    report = json.loads(everstep("doctor", "--json").out)
    assert report["ok"] is works
    assert {check["group"] for check in report["checks"]} == {"backend", "version", "extra", "path"}


def test_what_is_optional_is_not_marked_as_wrong(monkeypatch: pytest.MonkeyPatch, everstep: Any, quick: Any) -> None:
    quick(True)
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else version(name))
    shown = everstep("doctor").out
    assert "– extra    torch" in shown
    assert "✗" not in shown
    assert "wrong" not in shown


def test_one_backend_that_works_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "installed", lambda: ["first", "second", "third"])
    works, breaks = "print('[\"cpu:0\"]')", "raise SystemExit(3)"
    monkeypatch.setattr(doctor, "_QUICK_PROBES", {"first": works, "second": breaks, "third": works})
    assert [(check.name, check.ok) for check in doctor.quick_backends({}, 60)] == [
        ("first", True),
        ("second", None),
        ("third", None),
    ]
    environment = {"KERAS_BACKEND": "second"}
    found = doctor.quick_backends(environment, 60)
    assert [(check.name, check.ok) for check in found] == [("second", False), ("first", True), ("third", None)]
    text = doctor.verdict(found)
    assert text.startswith("Ready to train with first (devices cpu:0); wrong: backend second")


def test_a_backend_that_loads_slowly_does_not_keep_a_person_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "installed", lambda: ["first", "second"])
    monkeypatch.setattr(doctor, "_QUICK_PROBES", dict.fromkeys(("first", "second"), "import time; time.sleep(60)"))
    found = doctor.quick_backends({}, 0.3)
    assert [(check.name, check.ok) for check in found] == [("first", None), ("second", None)]
    assert "everstep doctor --all" in found[0].text
    assert doctor.verdict(found).startswith("Ready to train with first, which is installed; everstep doctor --all")


def test_extras_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": None, "tensorflow": "2.1.0"}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "999"))
    found = {check.name: check for check in doctor.extras()}
    assert found["torch"] == Check("extra", "torch", None, f"{install_command('torch')} (lacks torch)")
    assert "tensorflow<3,>=2.20, found 2.1.0" in found["tensorflow"].text
    assert found["tensorflow"].ok is False
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


def test_the_quick_try_finds_the_devices_that_keras_finds() -> None:
    name = keras.backend.backend()
    quick = doctor._try_backend(name, os.environ, 300, doctor._QUICK_PROBES[name])
    assert quick.ok
    assert quick == doctor._try_backend(name, os.environ, 300, doctor._PROBE)


@pytest.mark.full
def test_backends_are_tried_for_real(shell: Any) -> None:
    outcome = shell("doctor", "--all")
    assert outcome.code == 0
    assert "✓ backend  jax " in outcome.out
    assert "devices cpu:0" in outcome.out
    assert outcome.err == ""
