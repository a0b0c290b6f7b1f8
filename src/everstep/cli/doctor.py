"""`everstep doctor`. Nothing here imports a backend: one is tried in a process of its own; with `--all` every one."""

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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

from everstep import __version__, storage
from everstep.cli import options
from everstep.cli.command import new_app
from everstep.cli.output import aligned
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.extras import install_command
from everstep.storage import json_text
from everstep.tracking import can_draw

app = new_app()


All = Annotated[bool, typer.Option("--all", help="Try every backend, and load Keras with it: up to a minute.")]


@app.command(epilog="Example: everstep doctor --all")
def doctor(all_: All = False, json: options.Json = False) -> None:
    """Check this machine: backends, extras, disk.

    Tries the backend that a run would use for two seconds; with --all every one, and Keras with it, however long that
    takes. Succeeds if a backend works, or is installed and was not tried to its end. A run of components is checked by
    everstep check.
    """
    environment = dict(os.environ)  # as it was: choosing a backend sets variables
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        trial = thread.submit(backends if all_ else quick_backends, environment)
        chosen, others = chosen_backend(), [*versions(), *extras(), *paths()]
        tried = trial.result()
    checks = [chosen, *tried, *others]
    works = any(check.ok is not False for check in tried)
    if json:
        print(json_text({"ok": works, "checks": [dataclasses.asdict(check) for check in checks]}))
    else:
        lines = aligned([(f"{_mark(check.ok)} {check.group}", check.name, check.text) for check in checks])
        shown = zip(lines.splitlines(), checks, strict=True)
        print("\n".join(_grey(line) if check.ok is None else line for line, check in shown))
        print(f"\n{verdict(checks)}")
    raise typer.Exit(0 if works else 1)


def verdict(checks: Sequence["Check"]) -> str:
    """Returns in one sentence whether this machine can train, and what is wrong with it."""
    working = [check for check in checks if check.group == "backend" and check.ok and check.name != "chosen"]
    wrong = [f"{check.group} {check.name}" for check in checks if check.ok is False]
    untried = [check for check in checks if check.group == "backend" and check.ok is None]
    if not working and not untried:
        return f"Not ready: no backend works. {install_command('tensorflow')} installs one."
    names = " and ".join(f"{check.name} ({check.text})" for check in working)
    names = names or f"{untried[0].name}, which is installed; everstep doctor --all tries it"
    if wrong:
        return f"Ready to train with {names}; wrong: {', '.join(wrong)}, see above."
    return f"Ready to train with {names}. Next: everstep train mnist/quick"


def _mark(ok: bool | None) -> str:
    if (sys.stdout.encoding or "").lower().startswith("utf"):
        return "–" if ok is None else "✓" if ok else "✗"
    return "- " if ok is None else "ok" if ok else "no"


def _grey(line: str) -> str:
    is_styled = can_draw(sys.stdout) and not os.environ.get("NO_COLOR")
    return f"\x1b[2m{line}\x1b[0m" if is_styled else line


_PACKAGES = (
    *("everstep", "keras", "jax", "jaxlib", "tensorflow", "torch", "numpy", "orbax-checkpoint"),
    *("pydantic", "typer", "rich", "tensorboard", "mlflow", "mlflow-skinny"),
)
_PROBE = "import json; from everstep.engine.device_names import devices; print(json.dumps(devices()))"
_QUICK_PROBES = {
    "jax": "import json, jax; print(json.dumps([f'{one.platform}:{one.id}' for one in jax.devices()]))",
    "tensorflow": """
import json, tensorflow
found = [one.device_type.lower() for one in tensorflow.config.list_physical_devices()]
devices = [kind for kind in found if kind != "cpu"] or found
print(json.dumps([f"{kind}:{index}" for index, kind in enumerate(devices)]))""",
    "torch": """
import json, torch
found = torch.accelerator.is_available()
kind = str(torch.accelerator.current_accelerator().type).replace("cuda", "gpu") if found else "cpu"
print(json.dumps([f"{kind}:{index}" for index in range(torch.accelerator.device_count() if found else 1)]))""",
}
"""Programs that import a backend and list its devices, without Keras, which takes longer to load than JAX."""
_PROBE_SECONDS = 120.0
_QUICK_SECONDS = 1.8  # of a quick trial: TensorFlow takes many more to load


@dataclasses.dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
      group: What it is about: backend, extra, path…
      name: The thing looked at.
      ok: Whether it can be used; None for what is optional and not there, or was not tried.
      text: What was found, or what to do.
    """

    group: str
    name: str
    ok: bool | None
    text: str


def backends(environment: Mapping[str, str], seconds: float = _PROBE_SECONDS) -> list[Check]:
    """Imports Keras with every backend installed, each in its own process; returns devices or the failure."""
    names = backend.installed()
    with concurrent.futures.ThreadPoolExecutor(max(1, len(names))) as pool:
        return list(pool.map(lambda name: _try_backend(name, environment, seconds, _PROBE), names))


def quick_backends(environment: Mapping[str, str], seconds: float = _QUICK_SECONDS) -> list[Check]:
    """Tries the backends in the order in which a run would choose them, until one works; says which are not tried.

    Args:
      environment: The environment variables.
      seconds: How long all trials may take; a backend that takes longer to load counts as not tried.
    """
    wanted, end = environment.get("KERAS_BACKEND"), time.monotonic() + seconds
    names = sorted(backend.installed(), key=lambda name: name != wanted)
    found: list[Check] = []
    for name in names:
        if any(check.ok is not False for check in found):
            found.append(Check("backend", name, None, f"{_installed(name)}, not tried: everstep doctor --all"))
            continue
        slow = Check("backend", name, None, f"{_installed(name)}, loads too slowly to try: everstep doctor --all")
        found.append(_try_backend(name, environment, end - time.monotonic(), _QUICK_PROBES.get(name, _PROBE), slow))
    return found


def _installed(name: str) -> str:
    """Returns that a package is installed, and its version where that is known."""
    return f"{version} is installed" if (version := _version(name)) else "installed"


def _try_backend(
    name: str, environment: Mapping[str, str], seconds: float, probe: str, slow: Check | None = None
) -> Check:
    """Runs a program that imports a backend; returns its devices or the failure, or `slow` if that takes longer."""
    quiet = {"KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", probe],
            env={**environment, **quiet},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return slow or Check("backend", name, False, f"no answer within {seconds:g} seconds")
    except OSError as error:
        return Check("backend", name, False, f"{type(error).__name__}: {error}")
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return Check("backend", name, True, f"devices {', '.join(json.loads(lines[-1]))}")
    why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Check("backend", name, False, f"cannot be imported (exit code {done.returncode}): {why}")


def chosen_backend() -> Check:
    """Returns the backend of a run that specifies none."""
    if not backend.installed():
        return Check("backend", "chosen", False, f"none is installed: {install_command('tensorflow')}")
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
        return [Check("extra", "everstep", None, "not installed, so its extras are unknown: pip install -e .")]
    return [_extra(name) for name in names]


def _extra(name: str) -> Check:
    lacking = [text for requirement in _wanted(name) if (text := _lacking(requirement))]
    if not lacking:
        return Check("extra", name, True, "installed")
    is_wrong = any(", found " in text for text in lacking)  # a version that does not fit, and not just nothing
    text = f"{install_command(name)} (lacks {', '.join(lacking)})"
    return Check("extra", name, False if is_wrong else None, text)


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
