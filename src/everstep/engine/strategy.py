"""Distribution strategies: which devices a run uses, by the names of TF Model Garden, or as a mesh with named axes."""

import contextlib
import functools
import importlib
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

from everstep.engine.sharding import check_backend
from everstep.errors import UsageError, nearest
from everstep.gang import current_gang

logger = logging.getLogger(__name__)

STRATEGIES = ("off", "one_device", "mirrored", "tpu")
_MULTI_WORKER = "multi_worker_mirrored"
_ALL_REDUCE = {"nccl": "NcclAllReduce", "hierarchical_copy": "HierarchicalCopyAllReduce"}
_NAME = "distribution_strategy"
_KEY = f"runtime.{_NAME}"
_HERE = (None, "", "local")


class OneDevice:
    """The strategy of a single device; its scope does nothing."""

    num_replicas_in_sync = 1

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Changes nothing."""
        return contextlib.nullcontext()


def current_strategy() -> Any:
    """Returns the strategy, or the mesh of devices, whose scope is active; None if the backend has none."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return importlib.import_module("tensorflow").distribute.get_strategy()
    if keras.backend.backend() == "jax":
        return importlib.import_module("everstep.engine.mesh").current_mesh()
    return None


_entered: list[tuple[Any, contextlib.ExitStack]] = []


@contextlib.contextmanager
def entered(strategy: Any) -> Iterator[None]:
    """Enters the scope of a strategy, which `suspended` can leave; None for no strategy."""
    if strategy is None:
        yield
        return
    with contextlib.ExitStack() as scope:
        scope.enter_context(strategy.scope())
        _entered.append((strategy, scope))
        try:
            yield
        finally:
            _entered.pop()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Leaves the scopes of all strategies that were `entered`, for the time of the block.

    This is for work on one device while several train: TensorFlow cannot run a loaded program in the scope of a
    strategy.
    """
    for _, scope in reversed(_entered):
        scope.close()
    try:
        yield
    finally:
        for strategy, scope in _entered:
            scope.enter_context(strategy.scope())


def configured_strategy(config: Any) -> Any:
    """Returns the strategy that a RuntimeConfig selects; None for one device, which needs none."""
    if config.mesh is not None or config.sharding != "replicated":
        return _mesh(config)
    if config.distribution_strategy.lower() in ("off", "one_device"):
        return _one_device_each()
    return get_distribution_strategy(config.distribution_strategy, config.all_reduce_alg, config.num_gpus, config.tpu)


def _one_device_each() -> Any:
    """Returns the strategy of several processes with one device each; None for one process, and where it needs none."""
    import keras

    if current_gang().size == 1 or keras.backend.backend() != "jax":
        return None
    jax, mesh = importlib.import_module("jax"), importlib.import_module("everstep.engine.mesh")
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return mesh.DeviceMesh([firsts[index] for index in sorted(firsts)], even_batches=True)


def _mesh(config: Any) -> Any:
    """Returns the mesh that a RuntimeConfig describes, over all devices or `num_gpus` of them.

    Raises:
      UsageError: The backend is not JAX, or the mesh has another number of devices.
    """
    import keras

    key = "mesh" if config.mesh is not None else "sharding"
    check_backend(keras.backend.backend(), f"runtime.{key}", getattr(config, key))
    jax, mesh = importlib.import_module("jax"), importlib.import_module("everstep.engine.mesh")
    return mesh.DeviceMesh(_wanted(jax.devices(), config.num_gpus), config.mesh, config.sharding, even_batches=True)


def get_distribution_strategy(
    distribution_strategy: str | None = "mirrored",
    all_reduce_alg: str | None = None,
    num_gpus: int = 0,
    tpu_address: str | None = None,
) -> Any:
    """Returns a strategy for `run_experiment`, for the backend that Keras is loaded with.

    Example:
        strategy = everstep.get_distribution_strategy("mirrored", num_gpus=4)
        model, logs = everstep.run_experiment(task, params, "runs/four", "train", distribution_strategy=strategy)

    Args:
      distribution_strategy: `off` and `one_device` use one device; `mirrored` shares each batch among several; `tpu`
        uses the TPU of this machine. `multi_worker_mirrored` is for several processes with one device each, which
        share each batch with `one_device`, too; with a single worker it is `mirrored`. None is `off`.
      all_reduce_alg: How gradients are summed on TensorFlow: `nccl` or `hierarchical_copy`; None lets it choose.
      num_gpus: The number of GPUs; 0 for all of them, or the CPU if there is none.
      tpu_address: For TensorFlow: the name or address of the TPU; None, `""` and `local` mean that of this machine.

    Returns:
      A `tf.distribute` strategy, a `DeviceMesh` on JAX, or a `OneDevice`; all have `scope()`.

    Raises:
      UsageError: The strategy is unknown, or this machine does not have the devices for it.
    """
    try:
        name = strategy_name(distribution_strategy)
    except UsageError as error:
        raise UsageError([problem.under("runtime") for problem in error.problems]) from None
    processes, is_multi_worker = current_gang().size, str(distribution_strategy).lower() == _MULTI_WORKER
    if is_multi_worker and processes == 1:
        logger.warning("%s: %s has one worker, this machine, and is the same as 'mirrored'", _KEY, _MULTI_WORKER)
    if num_gpus < 0:
        raise UsageError("must be at least 0 (0: all devices)", key="runtime.num_gpus", received=num_gpus)
    if name in ("off", "one_device") and num_gpus > 1:
        text = f"uses one device, but num_gpus is {num_gpus}"
        raise UsageError(text, key=_KEY, received=name, remedy="choose 'mirrored'")
    import keras

    if processes > 1 and keras.backend.backend() != "jax":
        if not is_multi_worker and name not in ("off", "one_device"):
            raise UsageError(
                f"{processes} processes train this run, and on {keras.backend.backend()} each has one device",
                key=_KEY,
                received=name,
                remedy=f"set it to 'one_device' or {_MULTI_WORKER!r}, and start one process per device",
            )
        return OneDevice()
    make = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return make(name, all_reduce_alg, num_gpus, tpu_address)


def strategy_name(name: Any) -> str:
    """Returns the canonical name of a strategy; as in Model Garden, case does not matter.

    Raises:
      UsageError: The name is unknown; the key is relative to the runtime section.
    """
    if name is None or name is False:  # some YAML readers parse `off` as False
        return "off"
    lowered = str(name).lower()
    if lowered == _MULTI_WORKER:
        _require_one_worker(name)
        return "mirrored"
    if lowered == "parameter_server":
        reason = "parameter servers train asynchronously, cannot be resumed exactly, and are not supported"
        raise UsageError(reason, key=_NAME, received=name, remedy=f"choose one of {', '.join(STRATEGIES)}")
    if lowered not in STRATEGIES:
        raise UsageError("is not a strategy", key=_NAME, received=name, remedy=nearest(lowered, STRATEGIES))
    return lowered


def _require_one_worker(name: str) -> None:
    """Refuses a cluster of several workers in `TF_CONFIG`; a single one, which it need not name, is fine."""
    try:
        workers = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        count = sum(len(workers.get(job, [])) for job in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        text = "the environment variable TF_CONFIG is not a JSON object"
        raise UsageError(text, key=_NAME, received=name, remedy="unset TF_CONFIG") from None
    if count > 1:
        raise UsageError(
            f"TF_CONFIG names {count} workers, but processes do not find each other by TF_CONFIG",
            key=_NAME,
            received=name,
            remedy="unset TF_CONFIG, and start with `everstep launch --processes N`, or set EVERSTEP_COORDINATOR, "
            "EVERSTEP_PROCESS_ID and EVERSTEP_NUM_PROCESSES",
        )


def _jax(name: str, all_reduce_alg: str | None, num_gpus: int, tpu_address: str | None) -> Any:
    import jax

    if all_reduce_alg is not None:
        raise UsageError(
            "has no effect on JAX, where the compiler decides how gradients are summed",
            key="runtime.all_reduce_alg",
            received=all_reduce_alg,
            remedy="remove it",
        )
    if name in ("off", "one_device"):
        return OneDevice()
    if name == "tpu" and jax.default_backend() != "tpu":
        raise UsageError(f"there is no TPU on this machine, JAX computes on {jax.default_backend()}", key=_KEY)
    if tpu_address not in _HERE:
        raise UsageError(
            "is the address of another machine, and JAX uses the TPU of this one",
            key="runtime.tpu",
            received=tpu_address,
            remedy="remove it",
        )
    mesh = importlib.import_module("everstep.engine.mesh")
    if current_gang().size > 1:
        return mesh.DeviceMesh(_wanted(jax.devices(), num_gpus), even_batches=True)
    return mesh.DeviceMesh(_wanted(jax.local_devices(), num_gpus))


def _torch(name: str, all_reduce_alg: str | None, num_gpus: int, tpu_address: str | None) -> Any:
    if all_reduce_alg is not None:
        raise UsageError(
            "has no effect on PyTorch, where a process uses one device",
            key="runtime.all_reduce_alg",
            received=all_reduce_alg,
            remedy="remove it",
        )
    if name == "tpu":
        raise UsageError("there is no TPU on this machine for PyTorch", key=_KEY, remedy="use JAX or TensorFlow")
    there = importlib.import_module("everstep.engine.device_names").devices()
    if name == "mirrored" and len(_wanted(there, num_gpus)) > 1:
        raise UsageError(
            f"on PyTorch a process uses one device, and this machine has {len(there)}",
            key=_KEY,
            remedy="set it to 'one_device', and start `everstep launch --processes "
            f"{num_gpus or len(there)}` for one process per device",
        )
    return OneDevice()


def _tensorflow(name: str, all_reduce_alg: str | None, num_gpus: int, tpu_address: str | None) -> Any:
    tf = importlib.import_module("tensorflow")
    if all_reduce_alg is not None and all_reduce_alg not in _ALL_REDUCE:
        raise UsageError(
            key="runtime.all_reduce_alg", received=all_reduce_alg, remedy=nearest(all_reduce_alg, _ALL_REDUCE)
        )
    if name == "off":
        return OneDevice()
    if name == "tpu":
        return _tpu(tf, tpu_address)
    gpus, cpus = ([device.name for device in tf.config.list_logical_devices(kind)] for kind in ("GPU", "CPU"))
    devices = _wanted(gpus, num_gpus) if gpus or num_gpus else cpus
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    return _mirrored(tuple(devices), all_reduce_alg)


@functools.cache
def _mirrored(devices: tuple[str, ...], all_reduce_alg: str | None) -> Any:
    """Returns the strategy for some devices, the same one for all runs of a process.

    Each strategy numbers its collective operations from 0. A second one would reuse the numbers of the first, and
    TensorFlow aborts if the shapes under a number differ.
    """
    tf = importlib.import_module("tensorflow")
    sums = getattr(tf.distribute, _ALL_REDUCE[all_reduce_alg])() if all_reduce_alg else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=sums)


def _wanted(devices: list[Any], count: int) -> list[Any]:
    if count > len(devices):
        raise UsageError(
            f"this machine has {len(devices)}", key="runtime.num_gpus", received=count, remedy="0 uses all of them"
        )
    return devices[:count] if count else devices


def _tpu(tf: Any, address: str | None) -> Any:
    if address in _HERE and not tf.config.list_logical_devices("TPU"):
        raise UsageError(
            "there is no TPU on this machine",
            key=_KEY,
            remedy=("for one elsewhere set {tpu} to its address",),
            mentions={"tpu": "runtime.tpu"},
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address or "")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:  # depending on where it fails
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"the TPU cannot be reached: {reason}", key="runtime.tpu", received=address) from error
    return tf.distribute.TPUStrategy(resolver)
