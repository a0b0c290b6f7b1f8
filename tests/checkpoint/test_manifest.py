"""The manifest by itself: what it promises of the files of a checkpoint."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from everstep.checkpoint import manifest
from everstep.checkpoint.manifest import Base, Damaged, Manifest
from everstep.errors import UsageError

CONTENT = {"state/a": b"weights", "state/b": b"slots", "meta": b"{}"}


def described(**changes) -> Manifest:
    return dataclasses.replace(Manifest(7, "mine", 1.5, {"loss": 0.5}, {}, "0.1"), **changes)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name, content in CONTENT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    manifest.write(tmp_path, described())
    return tmp_path


def rewrite(checkpoint: Path, **changes) -> None:
    path = checkpoint / manifest.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2) + "\n")


def test_it_is_read_as_it_was_written(checkpoint):
    sizes = {name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in CONTENT.items()}
    assert manifest.read(checkpoint) == described(files=sizes)
    assert manifest.verify(checkpoint) == manifest.read(checkpoint)
    assert manifest.fingerprints(checkpoint) == sizes


def test_the_numbers_of_the_formats_are_those_of_checkpoints_that_exist():
    assert (manifest.WHOLE, manifest.IN_PARTS, manifest.ON_BASE, manifest.FORMAT) == (1, 2, 3, 3)
    assert (described().format, Base("digest").variables) == (2, 0)


WRITTEN_BEFORE = """{
  "step": 7,
  "run": "mine",
  "saved": 1.5,
  "metrics": {
    "loss": 0.5
  },
  "files": {
    "meta": [
      2,
      "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    ]
  },
  "version": "0.1",
  "format": 1,
  "digest": "0de6be934b34e777aab4d3c60308b79aa8d8a8764ba3f164f0e8d03ac474b193"
}
"""


def test_checkpoints_that_exist_are_read(tmp_path):
    (tmp_path / "meta").write_bytes(b"{}")
    (tmp_path / manifest.NAME).write_text(WRITTEN_BEFORE)
    assert (manifest.verify(tmp_path).step, manifest.read(tmp_path).format) == (7, manifest.WHOLE)
    manifest.write(tmp_path, described())
    number, digest = '"format": 1', "0de6be934b34e777aab4d3c60308b79aa8d8a8764ba3f164f0e8d03ac474b193"
    written = WRITTEN_BEFORE.replace(number, '"format": 2')
    written = written.replace(digest, "e982002f60125021f7f972cff0ab7b9531ed87e4e9122c1986c84724e47946ad")
    assert (tmp_path / manifest.NAME).read_text() == written


def test_a_number_that_is_not_finite_is_not_written(checkpoint):
    before = (checkpoint / manifest.NAME).read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest.write(checkpoint, described(metrics={"loss": float("nan")}))
    assert (checkpoint / manifest.NAME).read_bytes() == before


def test_a_base_is_part_of_it(checkpoint):
    base = Base("digest", "preset", 3)
    manifest.write(checkpoint, described(base=base))
    assert (manifest.read(checkpoint).base, manifest.read(checkpoint).format) == (base, manifest.ON_BASE)


def test_without_a_base_older_programs_read_it(checkpoint):
    assert "base" not in json.loads((checkpoint / manifest.NAME).read_text())
    assert manifest.read(checkpoint).base is None


def test_another_value_is_damage(checkpoint):
    """In the right form, so that only the digest tells."""
    rewrite(checkpoint, step=8)
    with pytest.raises(Damaged, match="was changed"):
        manifest.read(checkpoint)


def test_another_spelling_is_damage(checkpoint):
    """Of the same values, so that the digest is right."""
    path = checkpoint / manifest.NAME
    path.write_text(path.read_text() + "\n")
    with pytest.raises(Damaged, match="was changed"):
        manifest.read(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", "{", "7", '{"step": NaN}'])
def test_what_is_no_manifest_is_damage(checkpoint, text):
    (checkpoint / manifest.NAME).write_text(text)
    with pytest.raises(Damaged):
        manifest.read(checkpoint)


def test_a_missing_one_is_damage(checkpoint):
    (checkpoint / manifest.NAME).unlink()
    with pytest.raises(Damaged, match="no manifest"):
        manifest.read(checkpoint)


@pytest.mark.parametrize(("number", "newer"), [(manifest.FORMAT, False), (manifest.FORMAT + 1, True)])
def test_a_newer_format_is_refused(checkpoint, monkeypatch, number, newer):
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "IN_PARTS", number)  # as a newer program would write it
        manifest.write(checkpoint, described())
    if not newer:
        assert manifest.read(checkpoint).format == number
        return
    with pytest.raises(UsageError) as error:
        manifest.read(checkpoint)
    assert error.value.problems[0].remedy == "upgrade, or choose another directory"


def test_a_missing_and_an_extra_file_are_named(checkpoint):
    (checkpoint / "state" / "a").rename(checkpoint / "state" / "c")
    with pytest.raises(Damaged, match="^state/a is missing$"):
        manifest.verify(checkpoint)
    (checkpoint / "state" / "a").write_bytes(CONTENT["state/a"])
    with pytest.raises(Damaged, match="^state/c does not belong to it$"):
        manifest.verify(checkpoint)


def test_hidden_and_temporary_files_are_none_of_it(checkpoint):
    for name in (".DS_Store", "state/.nfs1", ".everstep-0123456789ab-x"):
        (checkpoint / name).write_bytes(b"")
    manifest.verify(checkpoint)
    manifest.write(checkpoint, described())
    assert ".everstep-0123456789ab-x" not in manifest.read(checkpoint).files


def test_of_files_that_are_not_chosen_the_size_is_checked(checkpoint):
    chosen = lambda files: ["meta"]  # noqa: E731
    (checkpoint / "state" / "a").write_bytes(b"WEIGHTS")
    manifest.verify(checkpoint, chosen)
    with pytest.raises(Damaged, match="^state/a has other content"):
        manifest.verify(checkpoint)
    (checkpoint / "state" / "a").write_bytes(b"longer than it was")
    with pytest.raises(Damaged, match="^state/a has 18 bytes, not 7$"):
        manifest.verify(checkpoint, chosen)


def test_files_of_other_processes_are_not_read_again(checkpoint):
    theirs = {"state/b": [5, "as they said"]}
    manifest.write(checkpoint, described(), theirs)
    files = manifest.read(checkpoint).files
    assert files["state/b"] == [5, "as they said"]
    assert files["state/a"] == [7, hashlib.sha256(b"weights").hexdigest()]
    assert manifest.fingerprints(checkpoint, ["meta"]).keys() == {"meta"}


def test_a_file_of_another_process_that_is_not_seen_is_an_error(checkpoint):
    with pytest.raises(FileNotFoundError, match="^state/z,"):
        manifest.write(checkpoint, described(), {"state/z": [1, ""]})


def test_everything_is_synced_before_the_manifest_is_there(checkpoint, monkeypatch):
    (checkpoint / manifest.NAME).unlink()
    synced = []

    def sync(paths):
        assert not (checkpoint / manifest.NAME).exists()
        synced.extend(map(str, paths))

    monkeypatch.setattr(manifest.storage, "sync", sync)
    manifest.write(checkpoint, described())
    assert set(synced) >= {str(checkpoint / name) for name in CONTENT} | {str(checkpoint), str(checkpoint / "state")}
