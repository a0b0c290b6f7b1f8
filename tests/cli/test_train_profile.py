"""`everstep train --profile`: what the flag comes to, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from everstep.cli import train


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Collects, in place of runs, the profile and the directory of each."""
    found: list[tuple[str, str]] = []

    def run(resolved: Any, mode: str, directory: Path | str, **settings: Any) -> dict[str, float]:
        found.append((resolved.params.trainer.profile, str(directory)))
        return {}

    monkeypatch.setattr(train, "run_resolved", run)
    return found


def test_the_flag_sets_the_profile_and_a_value_wins_over_it(everstep: Any, requests: list[tuple[str, str]]) -> None:
    for words in ([], ["--profile"], ["--profile", "trainer.profile=20..30"]):
        assert everstep("train", "mnist/local", *words).code == 0
    profiles, directories = zip(*requests, strict=True)
    assert profiles == ("", "auto", "20..30")
    assert len(set(directories)) == 1, "it is the same run, looked at or not"


@pytest.mark.parametrize("value", ["30..20", "many", "500000..500001"])
def test_nonsense_is_one_line_and_nothing_is_left(everstep: Any, tmp_path: Path, value: str) -> None:
    shown = everstep("train", "mnist/local", f"trainer.profile={value}")
    assert shown.code == 2
    assert shown.err.startswith("everstep: error: ")
    assert f"trainer.profile: received '{value}'" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
