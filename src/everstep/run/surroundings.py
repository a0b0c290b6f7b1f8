"""What a run computes on and with, beyond versions of libraries: processors, all packages, settings of the process.

Read from the system's own files, so that nothing has to be imported or started for it.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from everstep import storage

REQUIREMENTS = "requirements.txt"
"""The file of a run directory that lists every installed package."""

_PROCESSORS = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")
_SETTINGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_X64",
    "JAX_THREEFRY_PARTITIONABLE",
    "KERAS_FLOATX",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def processor() -> str:
    """Returns the processor's model."""
    return _after("model name", _PROCESSORS) or platform.processor()


def gpus() -> list[str]:
    """Returns the model of each NVIDIA GPU that this machine has."""
    if not _GPUS.is_dir():
        return []
    return [_after("Model", folder / "information") or "unknown" for folder in sorted(_GPUS.iterdir())]


def settings() -> dict[str, str]:
    """Returns the environment variables that change what libraries compute, as far as they are set."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def with_settings(environment: Mapping[str, str], recorded: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables with those that change what libraries compute as they were recorded."""
    others = {name: value for name, value in environment.items() if name not in _SETTINGS}
    return {**others, **{name: str(value) for name, value in recorded.items() if name in _SETTINGS}}


def installed() -> dict[str, str]:
    """Returns every installed package with its version, as the names of their folders tell."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for path in Path(folder or ".").glob("*.dist-info"):
            name, _, version = path.stem.rpartition("-")
            found.setdefault(name.lower().replace("_", "-"), version)
    return dict(sorted(found.items()))


def keep_packages(directory: Path) -> None:
    """Writes `requirements.txt` to a run directory: `pip install -r` brings the packages back."""
    storage.write_text(
        directory / REQUIREMENTS, "".join(f"{name}=={version}\n" for name, version in installed().items())
    )


def kept_packages(directory: Path) -> dict[str, str]:
    """Returns what `keep_packages` wrote; empty where there is nothing."""
    try:
        lines = (directory / REQUIREMENTS).read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: version for name, _, version in (line.partition("==") for line in lines) if version}


def _after(name: str, path: Path) -> str:
    """Returns what a file of `name: value` lines says of the first such name; empty if nothing."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    values = (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name)
    return next(values, "")
