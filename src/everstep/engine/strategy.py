"""Which devices of this machine a run uses, by the names that TF Model Garden gives to strategies."""

import contextlib
import functools
import importlib
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

from everstep.errors import UsageError, nearest

logger = logging.getLogger(__name__)

STRATEGIES = ("off", "one_device", "mirrored", "tpu")
_MULTI_WORKER = "multi_worker_mirrored"
_ALL_REDUCE = {"nccl": "NcclAllReduce", "hierarchical_copy": "HierarchicalCopyAllReduce"}
_NAME = "distribution_strategy"
_KEY = f"runtime.{_NAME}"
_HERE = (None, "", "local")


class OneDevice:
    """One device, which needs no strategy."""

    num_replicas_in_sync = 1

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Changes nothing."""
        return contextlib.nullcontext()


_entered: list[tuple[Any, contextlib.ExitStack]] = []


@contextlib.contextmanager
def entered(strategy: Any) -> Iterator[None]:
    """Inside the block a strategy is in force, the scope of which `suspended` can leave; None stands for none."""
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
    """Inside the block no strategy is in force that was `entered`.

    For what is about one device alone, while several train: TensorFlow cannot run a program that it has loaded in the
    scope of a strategy.
    """
    for _, scope in reversed(_entered):
        scope.close()
    try:
        yield
    finally:
        for strategy, scope in _entered:
            scope.enter_context(strategy.scope())


def configured_strategy(config: Any) -> Any:
    """Returns what `config`, a RuntimeConfig, says of devices; None for one of them, which needs no strategy."""
    if config.distribution_strategy.lower() in ("off", "one_device"):
        return None
    return get_distribution_strategy(config.distribution_strategy, config.all_reduce_alg, config.num_gpus, config.tpu)


def get_distribution_strategy(
    distribution_strategy: str | None = "mirrored",
    all_reduce_alg: str | None = None,
    num_gpus: int = 0,
    tpu_address: str | None = None,
) -> Any:
    """Returns what `run_experiment` takes as its strategy, for the backend that Keras is loaded with.

    Example:
        strategy = everstep.get_distribution_strategy("mirrored", num_gpus=4)
        model, logs = everstep.run_experiment(task, params, "runs/four", "train", distribution_strategy=strategy)

    Args:
      distribution_strategy: `off` and `one_device` use one device; `mirrored` shares each batch among several; `tpu`
        uses the TPU of this machine. `multi_worker_mirrored` with a single worker is `mirrored`. None is `off`.
      all_reduce_alg: How gradients are summed, on TensorFlow: `nccl` or `hierarchical_copy`; None lets it choose.
      num_gpus: How many GPUs; 0 for all there are, or the CPU where there is none.
      tpu_address: For TensorFlow: the TPU's name or address; None, `""` and `local` mean this machine's.

    Returns:
      A `tf.distribute` strategy, a `DeviceMesh` on JAX, or an object that stands for one device; all have `scope()`.

    Raises:
      UsageError: There is no such strategy, or this machine cannot serve it.
    """
    name = _checked_name(distribution_strategy)
    if str(distribution_strategy).lower() == _MULTI_WORKER:
        logger.warning("%s: %s has one worker here, this machine: it is 'mirrored'", _KEY, _MULTI_WORKER)
    if num_gpus < 0:
        raise UsageError("must be at least 0 (0: all there are)", key="runtime.num_gpus", received=num_gpus)
    if name in ("off", "one_device") and num_gpus > 1:
        text = f"uses one device, but num_gpus is {num_gpus}"
        raise UsageError(text, key=_KEY, received=name, remedy="choose 'mirrored'")
    make = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[_backend()]
    return make(name, all_reduce_alg, num_gpus, tpu_address)


def strategy_name(name: Any) -> str:
    """Returns the name of a strategy as it is spelled here; Model Garden does not mind capitals.

    Raises:
      UsageError: There is none of this name; the key is relative to the runtime section.
    """
    if name is None or name is False:  # what other YAML readers make of `off`
        return "off"
    lowered = str(name).lower()
    if lowered == _MULTI_WORKER:
        _require_one_worker(name)
        return "mirrored"
    if lowered == "parameter_server":
        reason = (
            "is for parameter servers, which train asynchronously and cannot be resumed exactly, and is not offered"
        )
        raise UsageError(reason, key=_NAME, received=name, remedy=f"choose one of {', '.join(STRATEGIES)}")
    if lowered not in STRATEGIES:
        raise UsageError("is not a strategy", key=_NAME, received=name, remedy=nearest(lowered, STRATEGIES))
    return lowered


def _require_one_worker(name: str) -> None:
    """Refuses a cluster of several machines; with one worker, which `TF_CONFIG` need not name, nothing is missing."""
    try:
        workers = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        count = sum(len(workers.get(job, [])) for job in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        text = "reads its cluster from TF_CONFIG, which is no JSON object"
        raise UsageError(text, key=_NAME, received=name, remedy="unset it") from None
    if count > 1:
        raise UsageError(
            f"is for several machines and is not offered, but TF_CONFIG names {count} workers",
            key=_NAME,
            received=name,
            remedy="unset TF_CONFIG to train on this machine alone",
        )


def _checked_name(name: Any) -> str:
    try:
        return strategy_name(name)
    except UsageError as error:
        raise UsageError([problem.under("runtime") for problem in error.problems]) from None


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _jax(name: str, all_reduce_alg: str | None, num_gpus: int, tpu_address: str | None) -> Any:
    import jax

    if all_reduce_alg is not None:
        raise UsageError("but on JAX the compiler decides", key="runtime.all_reduce_alg", received=all_reduce_alg)
    if name in ("off", "one_device"):
        return OneDevice()
    if name == "tpu" and jax.default_backend() != "tpu":
        raise UsageError(f"there is no TPU on this machine, JAX computes on {jax.default_backend()}", key=_KEY)
    if tpu_address not in _HERE:
        raise UsageError(
            "but JAX uses the TPU of this machine", key="runtime.tpu", received=tpu_address, remedy="remove it"
        )
    devices = jax.local_devices()
    return importlib.import_module("everstep.engine.jax").DeviceMesh(_wanted(devices, num_gpus))


def _torch(name: str, all_reduce_alg: str | None, num_gpus: int, tpu_address: str | None) -> Any:
    if all_reduce_alg is not None:
        raise UsageError("but on PyTorch a run uses one device", key="runtime.all_reduce_alg", received=all_reduce_alg)
    if name == "tpu":
        raise UsageError(
            "there is no TPU on this machine that PyTorch could use", key=_KEY, remedy="use JAX or TensorFlow"
        )
    there = importlib.import_module("everstep.engine.devices").devices()
    if name == "mirrored" and len(_wanted(there, num_gpus)) > 1:
        raise UsageError(
            f"on PyTorch a run uses one device, and this machine has {len(there)}",
            key=_KEY,
            remedy="set it to 'one_device', or use JAX",
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
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    devices = _wanted(gpus, num_gpus) if gpus or num_gpus else _cpus(tf)
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    return _mirrored(tuple(devices), all_reduce_alg)


@functools.cache
def _mirrored(devices: tuple[str, ...], all_reduce_alg: str | None) -> Any:
    """Returns the strategy for some devices: one for all runs of a process, since each counts its sums from the start.

    A second one would use the numbers of the first, and TensorFlow ends where the shapes under a number differ.
    """
    tf = importlib.import_module("tensorflow")
    sums = getattr(tf.distribute, _ALL_REDUCE[all_reduce_alg])() if all_reduce_alg else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=sums)


def _cpus(tf: Any) -> list[str]:
    return [device.name for device in tf.config.list_logical_devices("CPU")]


def _wanted(devices: list[Any], count: int) -> list[Any]:
    if count > len(devices):
        raise UsageError(f"but this machine has {len(devices)}; 0 takes all", key="runtime.num_gpus", received=count)
    return devices[:count] if count else devices


def _tpu(tf: Any, address: str | None) -> Any:
    if address in _HERE and not tf.config.list_logical_devices("TPU"):
        raise UsageError(
            "there is no TPU on this machine",
            key=_KEY,
            remedy="for one elsewhere set {tpu} to its address",
            mentions={"tpu": "runtime.tpu"},
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address or "")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:  # as many as it has layers
        said = str(error).strip().partition("\n")[0]
        raise UsageError(f"the TPU cannot be reached: {said}", key="runtime.tpu", received=address) from error
    return tf.distribute.TPUStrategy(resolver)
