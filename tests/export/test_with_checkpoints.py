import keras
import numpy as np
import pytest
import tensorflow as tf

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.engine import state as states
from everstep.export import CheckpointExports, ExportModule

pytestmark = [
    pytest.mark.backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def line(weight: float) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), weight, "float32"), np.zeros(1, "float32")])
    return model


def test_a_saved_model_for_every_checkpoint_that_is_kept(tmp_path):
    run = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", Retention(newest=2))
    exports = CheckpointExports(ExportModule(None, line(0.0)), ["serve"], tmp_path / "run", tmp_path / "serving")
    assert exports.latest is None
    assert exports.update() == []
    for step in (10, 20, 30):
        run.save(step, {k: keras.ops.convert_to_numpy(v) for k, v in _keyed(float(step))}, {"step": step})
        run.wait()
        exports({})
        assert exports.latest == tmp_path / "serving" / str(step)
        loaded = tf.saved_model.load(str(exports.latest)).signatures["serving_default"]
        assert loaded(inputs=tf.constant([[2.0]]))["output_0"].numpy() == 2.0 * step
    run.close()
    assert sorted(path.name for path in (tmp_path / "serving").iterdir()) == ["20", "30"]
    assert exports.update() == []
    assert [path.name for path in exports.follow(timeout=0.0, interval=0.01)] == ["20", "30"]
    assert [path.name for path in exports.follow(interval=0.01, done=lambda: True)] == ["20", "30"]


def _keyed(weight: float):
    return states.collect({"model": line(weight)}).items()
