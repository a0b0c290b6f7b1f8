import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.engine import state as states
from everstep.errors import UsageError
from everstep.export import CheckpointExports, ExportModule, export

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch cannot write a SavedModel"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def line(weight: float) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), weight, "float32"), np.zeros(1, "float32")])
    return model


def save(run: OrbaxCheckpointer, step: int, weight: float, replace: bool = False) -> None:
    held = states.collect({"model": line(weight)}).items()
    state = {key: np.asarray(keras.ops.convert_to_numpy(variable)) for key, variable in held}
    run.save(step, state, {"step": step}, replace=replace)
    run.wait()


def answer(path) -> float:
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    return float(loaded(inputs=tf.constant([[2.0]]))["output_0"].numpy()[0, 0])


def exports_of(tmp_path) -> CheckpointExports:
    return CheckpointExports(ExportModule(None, line(0.0)), ["serve"], tmp_path / "run", tmp_path / "serving")


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.daily("torch", "tensorflow")
def test_every_kept_checkpoint_has_a_saved_model(tmp_path):
    run = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", Retention(newest=2), run="a")
    exports = exports_of(tmp_path)
    assert exports.latest is None
    exports({})  # actions are called before the first checkpoint is saved
    for step in (10, 20, 30):
        save(run, step, float(step))
        exports({})
        assert exports.latest == tmp_path / "serving" / str(step)
        assert answer(exports.latest) == 2.0 * step
    assert names(tmp_path / "serving") == ["20", "30"]
    assert exports.update() == []
    assert [path.name for path in exports.follow(timeout=0.0, interval=0.01)] == ["20", "30"]
    assert [path.name for path in exports.follow(interval=0.01, done=lambda: True)] == ["20", "30"]
    save(run, 30, 7.0, replace=True)  # a run that was rolled back saves a step again
    assert exports.update() == [tmp_path / "serving" / "30"]
    assert answer(exports.latest) == 14.0
    run.close()


@pytest.mark.daily("torch", "tensorflow")
def test_versions_of_other_programs_are_kept(tmp_path):
    (tmp_path / "run").mkdir()
    exports = exports_of(tmp_path)
    version = export(ExportModule(None, line(5.0)), ["serve"], tmp_path / "serving")
    with pytest.raises(UsageError) as missing:
        exports.update()
    assert (missing.value.key, missing.value.received) == ("checkpoints", str(tmp_path / "run" / "checkpoints"))
    run = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", run="a")
    save(run, 20, 1.0)
    shutil.copytree(version, tmp_path / "serving" / "10")
    assert exports.update() == [exports.latest] == [tmp_path / "serving" / "20"]
    assert answer(version) == answer(tmp_path / "serving" / "10") == 10.0
    save(run, 10, 1.0)
    with pytest.raises(UsageError) as taken:
        exports.update()
    assert (taken.value.key, taken.value.received) == ("directory", str(tmp_path / "serving" / "10"))
    assert answer(tmp_path / "serving" / "10") == 10.0
    run.close()


def test_exports_of_another_run_stay(tmp_path):
    exports = exports_of(tmp_path)
    run = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", run="a")
    save(run, 10, 1.0)
    exports.update()
    run.close()
    shutil.rmtree(tmp_path / "run")
    other = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", run="b")
    save(other, 20, 2.0)
    exports.update()
    assert names(tmp_path / "serving") == ["10", "20"]
    other.close()
