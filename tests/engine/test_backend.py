"""Selecting and preparing the backend of a process."""

import os
import subprocess
import sys

import keras
import pytest

from everstep.engine import backend
from everstep.errors import UsageError
from everstep.extras import install_command

CURRENT = keras.backend.backend()
OTHER = "tensorflow" if CURRENT == "jax" else "jax"

pytestmark = pytest.mark.backend


def test_loaded_backend_is_kept():
    assert backend.select(None) == CURRENT
    assert backend.select(CURRENT) == CURRENT


def test_backend_other_than_loaded_is_refused():
    with pytest.raises(UsageError) as caught:
        backend.select(OTHER)
    assert f"loaded with '{CURRENT}'" in caught.value.reason
    assert (caught.value.key, caught.value.received) == ("runtime.backend", OTHER)
    assert f"KERAS_BACKEND={OTHER}" in caught.value.remedy


def test_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError) as caught:
        backend.select("tensorflw")
    assert (caught.value.received, caught.value.remedy) == ("tensorflw", "did you mean 'tensorflow'?")


def test_backend_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")  # one that Keras is loaded with is installed
    monkeypatch.setattr(backend, "installed", lambda: [])
    with pytest.raises(UsageError) as caught:
        backend.select(CURRENT)
    assert (caught.value.key, caught.value.received) == ("runtime.backend", CURRENT)
    assert caught.value.remedy == install_command(CURRENT)


def test_seed_determines_the_weights():
    weights = []
    for seed in (3, 3, 4):
        backend.prepare(seed)
        weights.append(
            keras.layers.Dense(2).build((None, 3)) or keras.random.normal((2,), seed=keras.random.SeedGenerator())
        )
    numbers = [keras.ops.convert_to_numpy(w).tolist() for w in weights]
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_seed_of_the_program_that_has_no_effect_is_reported(caplog):
    backend.prepare(3)
    caplog.clear()
    backend.prepare(4)
    assert caplog.text == ""  # another run may have another seed
    keras.utils.set_random_seed(5)
    backend.prepare(4)
    assert "keras.utils.set_random_seed(5) has no effect on this run, whose seed is 4" in caplog.text


@pytest.mark.parametrize("given", [None, "--xla_gpu_deterministic_ops=false"])
def test_jax_is_deterministic_on_a_gpu_unless_configured_otherwise(given):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "KERAS_BACKEND")}
    environment |= {} if given is None else {"XLA_FLAGS": given}
    code = "from everstep.engine import backend; backend.select('jax'); import os; print(os.environ['XLA_FLAGS'])"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == (given or "--xla_gpu_deterministic_ops=true")


SEEDED_LATER = """
import sys
from everstep.engine import backend
backend.select(sys.argv[1])
backend.prepare(7)
backend.prepare(3)
import keras, numpy
from everstep.export.keras_file import export_keras
export_keras(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), sys.argv[2], numpy.zeros((1, 2), "float32"))
assert "tensorflow" not in sys.modules
import tensorflow as tf
drawn = tf.random.uniform([2]).numpy().tolist()
tf.random.set_seed(3)
assert drawn == tf.random.uniform([2]).numpy().tolist()
assert tf.config.get_visible_devices("GPU") == []
backend.prepare(5)
drawn = tf.random.uniform([2]).numpy().tolist()
tf.random.set_seed(5)
assert drawn == tf.random.uniform([2]).numpy().tolist()
"""


@pytest.mark.daily("jax")
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it is imported at once there")
def test_tensorflow_is_imported_only_by_who_uses_it_and_is_seeded_then(tmp_path):
    pytest.importorskip("tensorflow")
    words = [keras.backend.backend(), str(tmp_path / "model.keras")]
    subprocess.run([sys.executable, "-c", SEEDED_LATER, *words], check=True, timeout=300)


def test_pytorchs_threads_soon_sleep_in_a_program(monkeypatch):
    """It reads the variables when it is imported, so `import everstep` sets one; a policy of the user's own decides."""
    code = "import everstep, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    for policy, expected in (({}, backend.SPIN_COUNT), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")):
        environment = {**os.environ, "KERAS_BACKEND": "torch", **policy}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected, "False"]


def test_tensorflow_starts_quietly_beside_another_backend(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    before = len(sys.meta_path)
    backend.set_default_backend()
    assert len(sys.meta_path) - before == (0 if CURRENT == "tensorflow" else 1)
