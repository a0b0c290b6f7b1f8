"""Compiled programs are kept with the run, and only while it runs."""

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
        for _ in range(100):
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
    """When the program was written; on a busy machine small ones that JAX makes by itself count as slow, too."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("jit_compiled-*-cache")}


def test_kept_in_the_directory_and_put_back(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))]:
        monkeypatch.delenv(name)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "compiled")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert printed == ["None 1.0", "/somewhere/else"]
    kept = written(tmp_path / "compiled")
    assert kept
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert written(tmp_path / "compiled") == kept
