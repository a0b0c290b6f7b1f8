"""The backend of this process: selected once, before Keras is imported."""

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from everstep import keras_internals
from everstep.engine import late_tensorflow
from everstep.errors import UsageError, nearest, warning_text
from everstep.extras import install_command
from everstep.gang import Gang, join
from everstep.notebook import is_notebook
from everstep.startup_messages import QuietImport, held_back

if TYPE_CHECKING:
    from everstep.engine.engine import Engine

_BACKENDS = {
    "tensorflow": ("everstep.engine.tensorflow", "TensorFlowBackend"),
    "jax": ("everstep.engine.jax", "JaxBackend"),
    "torch": ("everstep.engine.torch", "TorchBackend"),
}

_DETERMINISTIC = "xla_gpu_deterministic_ops"

SPIN_COUNT = "1000"
"""How often PyTorch's threads on a CPU look for work before they sleep; its own default is 300,000.

On a machine that others use as well, threads that spin for long take the CPU from the one they wait for: an epoch of
50 steps of a small transformer took 73 seconds, and takes 1.2. Threads that never spin need 1.6 times as long where the
machine is idle, since waking them takes longer than the operation they are woken for.
"""

logger = logging.getLogger(__name__)


def installed() -> list[str]:
    """Returns the backends that are installed, the default one first."""
    return [name for name in _BACKENDS if importlib.util.find_spec(name) is not None]


def set_default_backend() -> None:
    """Makes JAX the default of Keras where TensorFlow, its own default, is not installed; a `KERAS_BACKEND` is kept.

    Sets also what PyTorch reads once, when it is imported. TensorFlow starts without its messages in a notebook, where
    they would be red, and beside another backend, where `keras.utils.set_random_seed` imports it unasked.
    """
    loaded = sys.modules.get("keras")
    if loaded is None and "tensorflow" not in installed():
        os.environ.setdefault("KERAS_BACKEND", "jax")
    name = os.environ.get("KERAS_BACKEND", "tensorflow") if loaded is None else loaded.backend.backend()
    if (is_notebook() or name != "tensorflow") and late_tensorflow.NAME not in sys.modules:
        sys.meta_path.insert(0, QuietImport(late_tensorflow.NAME))
    if loaded is not None:
        return
    if os.environ.get("KERAS_BACKEND") == "torch":
        _set_torch_environment()


def select(name: str | None, key: str = "runtime.backend") -> str:
    """Selects the backend of this process and sets it for Keras; call it before anything imports Keras.

    Args:
      name: The requested backend. None: `KERAS_BACKEND` if set, else TensorFlow if installed, else JAX.
      key: The option or config key that requested it, for error messages.

    Returns:
      The name of the selected backend.

    Raises:
      UsageError: The backend is unknown or not installed, or Keras is already loaded with another one.
    """
    loaded = sys.modules.get("keras")
    current = loaded.backend.backend() if loaded is not None else os.environ.get("KERAS_BACKEND")
    key = key if name else "KERAS_BACKEND"
    name = name or current or next(iter(installed()), "jax")
    if name not in _BACKENDS:
        raise UsageError("unknown backend", key=key, received=name, remedy=nearest(name, _BACKENDS))
    if (loaded is None or name != current) and name not in installed():
        raise UsageError(f"the package {name!r} is not installed", key=key, received=name, remedy=install_command(name))
    if loaded is not None and current != name:
        raise UsageError(
            f"Keras is loaded with {current!r} already",
            key=key,
            received=name,
            remedy=f"set KERAS_BACKEND={name} before importing keras",
        )
    os.environ["KERAS_BACKEND"] = name
    _set_environment(name)
    return name


def _set_environment(name: str) -> None:
    """Reserves the accelerators for the selected backend, and requests deterministic operations from it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if name == "torch":
        _set_torch_environment()
    if name != "jax":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        return
    flags = os.environ.get("XLA_FLAGS", "")
    if _DETERMINISTIC not in flags:  # else the gradient of an embedding is not deterministic on a GPU
        os.environ["XLA_FLAGS"] = f"{flags} --{_DETERMINISTIC}=true".strip()


def _set_torch_environment() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else some products are not deterministic
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def join_gang() -> Gang:
    """Joins the processes that train this run together, if the environment names any; see `everstep.gang.join`.

    Call it when the backend is selected, before anything computes. On JAX the devices are then those of all processes;
    on TensorFlow and PyTorch the processes connect to each other, and each selects its device.
    """
    name = os.environ.get("KERAS_BACKEND")
    gang = join(spans_devices=name == "jax")
    if gang.size > 1 and name in ("tensorflow", "torch"):
        importlib.import_module(f"everstep.engine.{name}_processes").joined()
    return gang


def prepare(seed: int, deterministic: bool | Literal["auto"] = "auto") -> None:
    """Seeds all random generators and enables deterministic operations; call it before any object of a run is built.

    The settings stay for the rest of the process. `prepared` is for a call inside the user's own program.

    Args:
      seed: The seed.
      deterministic: False allows operations that are not deterministic; "auto" warns of those that have no
        deterministic form, and True refuses them. On JAX, `engine/certified.py` does that for each program.
    """
    import keras

    _warn_about_another_seed(seed)
    if keras.backend.backend() == "tensorflow":
        keras.utils.set_random_seed(seed)
        if deterministic is not False:
            importlib.import_module("tensorflow").config.experimental.enable_op_determinism()
        else:
            importlib.import_module("tensorflow.python.framework.config").disable_op_determinism()
        return
    late_tensorflow.seed_or_wait(seed, keras.utils.set_random_seed)
    if keras.backend.backend() == "torch" and deterministic is not False:
        _make_torch_deterministic(deterministic)
    elif keras.backend.backend() == "torch":
        importlib.import_module("torch").use_deterministic_algorithms(False)


def find_devices() -> None:
    """Has the backend find its devices, without its start-up messages, which the first variable would print."""
    import keras

    with held_back():
        keras.ops.zeros(())


_prepared_seed: int | None = None  # of the last call of `prepare`


def _warn_about_another_seed(seed: int) -> None:
    """Warns of a seed that the program has set and expects to be that of the run."""
    global _prepared_seed
    found = keras_internals.rng_utils.get_random_seed()
    if found not in (None, seed, _prepared_seed):
        text = warning_text(
            f"keras.utils.set_random_seed({found}) has no effect on this run, whose seed is {seed}",
            remedy=("set {seed}",),
            mentions={"seed": "runtime.seed"},
        )
        logger.warning("%s", text)
    _prepared_seed = seed


@contextlib.contextmanager
def prepared(seed: int, deterministic: bool | Literal["auto"] = "auto") -> Iterator[None]:
    """Makes operations deterministic inside the block, as `prepare`; restores all settings of the process after it.

    No random generator of the program is seeded, except TensorFlow's if it has no seed: deterministic operations need
    one. Of several threads that are inside at once, the first one prepares the process, and the last one restores it.
    """
    with _preparing:
        if not _inside:
            stack = contextlib.ExitStack()
            stack.enter_context(_prepared_process(seed, deterministic))
        else:
            stack = _inside[-1]
        _inside.append(stack)
    try:
        yield
    finally:
        with _preparing:
            _inside.pop()
            if not _inside:
                stack.close()


_preparing = threading.Lock()
_inside: list[contextlib.ExitStack] = []  # the same one for each thread that is inside `prepared`


@contextlib.contextmanager
def _prepared_process(seed: int, deterministic: bool | Literal["auto"]) -> Iterator[None]:
    import keras

    scopes = {"tensorflow": _deterministic_tensorflow, "torch": _deterministic_torch}
    tensorflow = sys.modules.get("tensorflow")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_restored_environment())
        if keras.backend.backend() in scopes and deterministic is not False:
            stack.enter_context(scopes[keras.backend.backend()](seed, deterministic))
        if keras.backend.backend() != "tensorflow" and tensorflow is not None:
            with held_back():  # it says that there is no GPU, where there is none
                visible = tensorflow.config.get_visible_devices("GPU")
            with contextlib.suppress(RuntimeError):  # its devices are in use already and cannot be hidden
                late_tensorflow.hide_gpus(tensorflow)
                stack.callback(_show_gpus, tensorflow, visible)
        yield


@contextlib.contextmanager
def _restored_environment() -> Iterator[None]:
    """Restores the environment variables that `select` sets, so that subprocesses do not inherit them."""
    names = ("CUBLAS_WORKSPACE_CONFIG", "JAX_PLATFORMS", "KERAS_BACKEND", "GOMP_SPINCOUNT", "TF_CPP_MIN_LOG_LEVEL")
    before = {name: os.environ.get(name) for name in (*names, "XLA_FLAGS")}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


@contextlib.contextmanager
def _deterministic_tensorflow(seed: int, deterministic: bool | Literal["auto"]) -> Iterator[None]:
    tensorflow = importlib.import_module("tensorflow")
    framework = importlib.import_module("tensorflow.python.framework.config")
    enabled = framework.is_op_determinism_enabled()
    unseeded = importlib.import_module("tensorflow.python.eager.context").global_seed() is None
    tensorflow.config.experimental.enable_op_determinism()
    if unseeded:
        tensorflow.random.set_seed(seed)
    try:
        yield
    finally:
        if unseeded:
            tensorflow.random.set_seed(None)
        if not enabled:
            framework.disable_op_determinism()


@contextlib.contextmanager
def _deterministic_torch(seed: int, deterministic: bool | Literal["auto"]) -> Iterator[None]:
    torch = importlib.import_module("torch")
    enabled, fills = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    _make_torch_deterministic(deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=only_warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills


def _make_torch_deterministic(deterministic: bool | Literal["auto"]) -> None:
    torch = importlib.import_module("torch")
    torch.use_deterministic_algorithms(True, warn_only=deterministic == "auto")
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that takes time


def _show_gpus(tensorflow: Any, devices: list[Any]) -> None:
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")
        tensorflow.config.set_visible_devices(devices, "GPU")


@contextlib.contextmanager
def keep_compiled(directory: str) -> Iterator[None]:
    """Caches programs that JAX compiles inside the block in a directory, so that the next attempt loads them.

    A cache directory that the user has configured is kept. What the programs must not lose, on a GPU, is kept beside
    the cache, in `programs`. On other backends this does nothing.
    """
    import keras

    jax = sys.modules.get("jax")
    if keras.backend.backend() != "jax" or jax is None:
        yield
        return
    programs = importlib.import_module("everstep.engine.programs")  # needs JAX
    with programs.keep_programs(Path(directory).with_name("programs")), _cached(jax, directory):
        yield


@contextlib.contextmanager
def _cached(jax: Any, directory: str) -> Iterator[None]:
    if jax.config.jax_compilation_cache_dir:
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    former = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # another directory may be open
        yield
    finally:
        for name, value in former.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def create_engine(task: Any, model: Any, optimizer: Any = None, **options: Any) -> "Engine":
    """Returns an engine on the backend that Keras is loaded with.

    Args:
      task: The task whose steps it runs.
      model: The model of the task.
      optimizer: The optimizer; None for evaluation only.
      **options: Fields of `EngineOptions`.
    """
    import keras

    name = keras.backend.backend()
    if name not in _BACKENDS:
        raise UsageError("has no engine", key="runtime.backend", received=name, remedy=nearest(name, _BACKENDS))
    import_engine()
    module, cls = _BACKENDS[name]
    engine, protocol = (sys.modules[f"everstep.engine.{part}"] for part in ("engine", "protocol"))
    backend = getattr(sys.modules[module], cls)(protocol.EngineOptions(**options))
    created: Engine = engine.Engine(task, model, optimizer, backend)
    return created


def import_engine() -> None:
    """Imports the engine for the backend that Keras is loaded with, if there is one."""
    import keras

    if keras.backend.backend() in _BACKENDS:
        importlib.import_module("everstep.engine.engine")
        importlib.import_module(_BACKENDS[keras.backend.backend()][0])
