"""JAX caches compiled programs in the directory of a run, and only while the run is active."""

import os
import subprocess
import sys
import textwrap

import keras
import pytest

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX keeps compiled programs"),
]

PROGRAM = """
    import sys, jax
    from everstep.engine import backend
    backend.select("jax")
    import keras
    def compiled(x):
        for _ in range(300):
            x = jax.numpy.tanh(x @ x) + jax.numpy.sort(x)
        return x
    with backend.keep_compiled(sys.argv[1]):
        jax.jit(compiled)(jax.numpy.ones((8, 8)))
    print(jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)
    jax.config.update("jax_compilation_cache_dir", "/somewhere/else")
    with backend.keep_compiled(sys.argv[1]):
        print(jax.config.jax_compilation_cache_dir)
"""


def written(folder):
    """Returns when the program was written; others, which JAX compiles by itself, may be slow enough to be cached."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("jit_compiled-*-cache")}


def test_programs_are_cached_and_settings_restored(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))]:
        monkeypatch.delenv(name)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "compiled")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    assert printed == ["None 1.0", "/somewhere/else"]
    kept = written(tmp_path / "compiled")
    assert kept
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    assert written(tmp_path / "compiled") == kept
