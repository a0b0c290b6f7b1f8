"""`everstep doctor`. Nothing here imports a backend: each is tried in a process of its own."""

import concurrent.futures
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer
from packaging.requirements import Requirement

from everstep import __version__, storage
from everstep.cli import options
from everstep.cli.command import new_app
from everstep.cli.output import aligned
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.storage import json_text

app = new_app()


@app.command(epilog="Example: everstep doctor --json")
def doctor(json: options.Json = False) -> None:
    """Check this machine: backends, extras, disk.

    Succeeds if some backend works. A run of components is checked by everstep check.
    """
    environment = dict(os.environ)  # as it was: choosing a backend sets variables
    tried = backends(environment)
    checks = [chosen_backend(), *tried, *versions(), *extras()]
    checks += paths()
    works = any(check.ok for check in tried)
    if json:
        print(json_text({"ok": works, "checks": [dataclasses.asdict(check) for check in checks]}))
    else:
        print(aligned([(f"{_mark(check.ok)} {check.group}", check.name, check.text) for check in checks]))
    raise typer.Exit(0 if works else 1)


def _mark(ok: bool) -> str:
    if (sys.stdout.encoding or "").lower().startswith("utf"):
        return "✓" if ok else "✗"
    return "ok" if ok else "no"


_PACKAGES = (
    *("everstep", "keras", "jax", "jaxlib", "tensorflow", "torch", "numpy", "orbax-checkpoint"),
    *("pydantic", "typer", "rich", "tensorboard", "mlflow", "mlflow-skinny"),
)
_PROBE = "import json; from everstep.engine.device_names import devices; print(json.dumps(devices()))"
_PROBE_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
      group: What it is about: backend, extra, path…
      name: The thing looked at.
      ok: Whether it can be used.
      text: What was found, or what to do.
    """

    group: str
    name: str
    ok: bool
    text: str


def backends(environment: Mapping[str, str], seconds: float = _PROBE_SECONDS) -> list[Check]:
    """Imports Keras with every backend installed, each in its own process; returns devices or the failure."""
    names = backend.installed()
    with concurrent.futures.ThreadPoolExecutor(max(1, len(names))) as pool:
        return list(pool.map(lambda name: _try_backend(name, environment, seconds), names))


def _try_backend(name: str, environment: Mapping[str, str], seconds: float) -> Check:
    quiet = {"KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**environment, **quiet},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("backend", name, False, f"{type(error).__name__}: no answer within {seconds:g} seconds")
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return Check("backend", name, True, f"devices {', '.join(json.loads(lines[-1]))}")
    why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Check("backend", name, False, f"cannot be imported (exit code {done.returncode}): {why}")


def chosen_backend() -> Check:
    """Returns the backend of a run that specifies none."""
    if not backend.installed():
        return Check("backend", "chosen", False, "none is installed: pip install 'everstep[tensorflow]'")
    origin = "KERAS_BACKEND" if os.environ.get("KERAS_BACKEND") else "the default"
    try:
        return Check("backend", "chosen", True, f"{backend.select(None)} ({origin})")
    except UsageError as error:
        return Check("backend", "chosen", False, f"{error} (from {origin})")


def versions() -> list[Check]:
    """Returns the versions of Python and of the packages that matter, where they are installed."""
    found = [(name, _version(name)) for name in _PACKAGES]
    python = Check("version", "python", True, f"{platform.python_version()} ({sys.executable})")
    return [python, *(Check("version", name, True, version) for name, version in found if version)]


def extras() -> list[Check]:
    """Returns for each of everstep's extras whether all its packages are installed, and how to install them."""
    try:
        names = importlib.metadata.metadata("everstep").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return [Check("extra", "everstep", False, "not installed, so its extras are unknown: pip install -e .")]
    return [_extra(name) for name in names]


def _extra(name: str) -> Check:
    lacking = [text for requirement in _wanted(name) if (text := _lacking(requirement))]
    remedy = f"pip install 'everstep[{name}]' (lacks {', '.join(lacking)})"
    return Check("extra", name, not lacking, remedy if lacking else "installed")


def _wanted(extra: str) -> Iterator[Requirement]:
    for text in importlib.metadata.requires("everstep") or []:
        requirement = Requirement(text)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "everstep":  # an extra that consists of extras
            for other in sorted(requirement.extras):
                yield from _wanted(other)
        else:
            yield requirement


def _lacking(requirement: Requirement) -> str:
    """Returns the package that is missing or has another version than wanted; empty if it fits."""
    version = _version(requirement.name)
    if version is None:
        return requirement.name
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name}{requirement.specifier}, found {version}"


def paths() -> list[Check]:
    """Returns whether the places that runs write to can be written to, and the space left there."""
    places = {"current directory": Path.cwd(), "runs": Path("runs"), "temporary": Path(_temporary())}
    return [_path(name, path) for name, path in places.items()]


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # raised when no candidate can be written to
        return os.environ.get("TMPDIR", "/tmp")


def _path(name: str, path: Path) -> Check:
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    try:
        storage.prepare_directory(existing)
    except UsageError as error:
        return Check("path", name, False, str(error))
    free = shutil.disk_usage(existing).free / 2**30
    return Check("path", name, True, f"{path.absolute()} can be written to, {free:.1f} GiB free")


def _version(package: str) -> str | None:
    if package == "everstep":
        return __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
