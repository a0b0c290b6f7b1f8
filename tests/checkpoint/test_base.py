"""Frozen weights in `base/`: written once, read with every checkpoint, removed with the last one."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from everstep import storage
from everstep.checkpoint import arrays, base, manifest, partial_read
from everstep.checkpoint.averaging import average, write_average
from everstep.checkpoint.digests import digest
from everstep.checkpoint.manifest import Base
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.errors import TrainingError, UsageError

FROZEN = {
    "model/kernel": np.arange(12, dtype="float32").reshape(3, 4),
    "model/quantized": np.arange(-4, 4, dtype="int8"),
    "model/brain": np.linspace(0, 1, 5).astype(ml_dtypes.bfloat16),
    "model/none": np.zeros((0, 2), "float32"),
}
BASE = Base(digest(FROZEN), variables=len(FROZEN))


def trained_state(step):
    return {"model/lora": np.full(3, step, "float32"), "optimizer/iteration": np.array(step)}


def checkpoints_on_base(folder, steps=(1, 2), retention=None, frozen=BASE):
    """Writes checkpoints on a base, as a run does; returns their folder."""
    checkpointer = OrbaxCheckpointer(folder / "checkpoints", retention or Retention(newest=9), run="a run")
    if not frozen.name:
        checkpointer.save_base(frozen, FROZEN)
    for step in steps:
        checkpointer.save(step, trained_state(step), {"step": step}, base=frozen)
        checkpointer.wait()
    checkpointer.close()
    return folder / "checkpoints"


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_is_read_with_its_frozen_weights(tmp_path):
    folder = checkpoints_on_base(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "checkpoints"]
    state, meta = OrbaxCheckpointer(folder, run="a run").restore()
    same(state, FROZEN | trained_state(2))
    assert meta == {"step": 2, "base": {"digest": BASE.digest, "name": "", "variables": 4}}
    assert manifest.read(folder / "1").base == BASE
    assert partial_read.shapes(folder / "1") == {
        key: array.shape for key, array in (FROZEN | trained_state(1)).items() if array.size
    }
    found = partial_read.read(folder / "1", ["model/kernel", "model/lora"])
    same(found, {"model/kernel": FROZEN["model/kernel"], "model/lora": trained_state(1)["model/lora"]})


def test_weights_in_other_folders_of_the_run_find_them(tmp_path):
    folder = checkpoints_on_base(tmp_path)
    for place in ("best/2", "exports/best/2"):
        shutil.copytree(folder / "2", tmp_path / place)
        same(arrays.read(tmp_path / place)[0], FROZEN | trained_state(2))


def test_without_frozen_weights_nothing_is_different(tmp_path):
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints")
    checkpointer.save(1, trained_state(1), {"step": 1})
    checkpointer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    written = json.loads((tmp_path / "checkpoints/1" / manifest.NAME).read_text())
    assert "base" not in written
    assert written["format"] == manifest.IN_PARTS
    assert OrbaxCheckpointer(tmp_path / "checkpoints").restore()[1] == {"step": 1}


def test_a_kill_after_the_frozen_weights_leaves_what_the_next_attempt_uses(tmp_path):
    checkpoints_on_base(tmp_path, steps=())
    half = tmp_path / "base" / ".everstep-0123456789ab-half"
    half.mkdir()
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="a run")
    assert checkpointer.latest() is None
    checkpointer.raise_if_all_damaged()  # it has never saved anything
    assert checkpointer.has_base(BASE)
    checkpointer.save_base(Base(digest({}), variables=0), {})  # of another start
    assert not half.exists()
    checkpointer.save(1, trained_state(1), {"step": 1}, base=BASE)
    checkpointer.close()
    same(OrbaxCheckpointer(tmp_path / "checkpoints", run="a run").restore()[0], FROZEN | trained_state(1))


@pytest.mark.parametrize("damage", ["changed", "removed", "another"])
def test_damaged_frozen_weights_are_reported_and_no_checkpoint_is_set_aside(tmp_path, damage):
    folder = checkpoints_on_base(tmp_path)
    place = tmp_path / "base" / base.name_of(BASE.digest)
    if damage == "removed":
        shutil.rmtree(place)
    elif damage == "changed":
        file = max((path for path in place.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    else:
        other = Base(BASE.digest[:16] + "0" * 48, variables=4)
        OrbaxCheckpointer(folder, run="a run").save_base(other, FROZEN)
    before = files(tmp_path)
    with pytest.raises(TrainingError) as caught:
        OrbaxCheckpointer(folder, run="a run").restore()
    assert isinstance(caught.value, base.MissingBase)
    assert "base" in str(caught.value)
    assert files(tmp_path) == before


def test_a_damaged_checkpoint_is_set_aside_as_ever(tmp_path):
    folder = checkpoints_on_base(tmp_path)
    (folder / "2" / "extra").write_text("x")
    same(OrbaxCheckpointer(folder, run="a run").restore()[0], FROZEN | trained_state(1))
    assert (folder / "2.damaged").is_dir()


def test_they_are_removed_with_the_last_checkpoint_that_needs_them(tmp_path):
    second = Base("f" * 64, variables=4)
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", Retention(newest=2), run="a run")
    checkpointer.save_base(BASE, FROZEN)
    checkpointer.save_base(second, FROZEN)

    def step(number, on):
        checkpointer.save(number, trained_state(number), {"step": number}, base=on)
        checkpointer.wait()
        return sorted(path.name for path in (tmp_path / "base").iterdir())

    both = sorted(base.name_of(each.digest) for each in (BASE, second))
    assert step(1, BASE) == both
    storage.prepare_directory(tmp_path / "best")
    shutil.copytree(tmp_path / "checkpoints/1", tmp_path / "best/1")
    assert [step(number, second) for number in (2, 3)] == [both, both]  # the best weights still need the first one
    shutil.rmtree(tmp_path / "best")
    assert step(4, BASE) == both
    assert [step(number, second) for number in (5, 6)] == [both, [base.name_of(second.digest)]]
    checkpointer.close()


def test_a_base_that_the_task_provides_is_only_named(tmp_path):
    named = Base(BASE.digest, "bert_tiny", 4)
    folder = checkpoints_on_base(tmp_path, frozen=named)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    state, meta = OrbaxCheckpointer(folder, run="a run").restore()
    same(state, trained_state(2))
    assert meta["base"] == {"digest": BASE.digest, "name": "bert_tiny", "variables": 4}


def test_the_average_contains_the_frozen_weights_unchanged(tmp_path):
    folder = checkpoints_on_base(tmp_path)

    def models(keys):
        return {key: key for key in keys if key.startswith("model/")}

    found = average([folder / "1", folder / "2"], models)
    same(found, FROZEN | {"model/lora": np.full(3, 1.5, "float32")})
    write_average([folder / "1", folder / "2"], tmp_path / "elsewhere/2", models)
    assert manifest.read(tmp_path / "elsewhere/2").base is None
    same(arrays.read(tmp_path / "elsewhere/2")[0], found)


def test_the_average_names_what_the_task_provides(tmp_path):
    named = Base(BASE.digest, "bert_tiny", 4)
    folder = checkpoints_on_base(tmp_path, frozen=named)
    write_average([folder / "1", folder / "2"], tmp_path / "2", lambda keys: {key: key for key in keys})
    assert manifest.read(tmp_path / "2").base == named
    checkpointer = OrbaxCheckpointer(folder, Retention(newest=9), run="a run")
    checkpointer.save(3, trained_state(3), {"step": 3}, base=Base(BASE.digest, "bert_small", 4))
    checkpointer.close()
    with pytest.raises(UsageError) as caught:
        write_average([folder / "1", folder / "3"], tmp_path / "3", lambda keys: {key: key for key in keys})
    assert caught.value.problems[0].key == "--checkpoint"


def test_an_older_program_refuses_them(tmp_path, monkeypatch):
    folder = checkpoints_on_base(tmp_path)
    monkeypatch.setattr(manifest, "FORMAT", manifest.IN_PARTS)
    with pytest.raises(UsageError):
        OrbaxCheckpointer(folder, run="a run").restore()
