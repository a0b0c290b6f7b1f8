"""Damaged checkpoints: every kind of damage, in every file, is noticed."""

from pathlib import Path

import pytest

from everstep.testing.reliability import damage
from everstep.testing.reliability.damage import Figures

pytestmark = pytest.mark.slow


def test_every_damage_is_noticed(tmp_path: Path) -> None:
    figures = damage.measure(tmp_path, flips=6, manifest_step=11)
    assert figures.passed(), figures.wrong()
    assert figures.tried["bits"] == 6
    assert figures.tried["truncated"] == figures.tried["emptied"] == figures.tried["removed"] > 5
    assert figures.manifest_bits > 1000


@pytest.mark.full
def test_every_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    figures = damage.measure(tmp_path, flips=100, seed=1)
    assert figures.passed(), figures.wrong()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_format_is_damage_and_no_newer_program(tmp_path: Path, bit: int) -> None:
    damage.save_two(tmp_path)
    path = tmp_path / str(damage.NEWEST) / "manifest.json"
    damage.flip_bit(path, 8 * (path.read_bytes().index(b'"format": ') + len(b'"format": ')) + bit)
    assert damage.restored(tmp_path) == damage.OLDER


@pytest.mark.parametrize("missed", ["undetected", "not_recovered", "not_kept", "manifest_missed"])
def test_unanswered_signals_do_not_pass(missed: str) -> None:
    assert Figures({"bits": 1}).passed()
    assert not Figures({"bits": 1}, **{missed: ["bit 0"]}).passed()


def test_an_undamaged_checkpoint_is_restored(tmp_path: Path) -> None:
    damage.save_two(tmp_path)
    assert damage.restored(tmp_path) == damage.NEWEST
