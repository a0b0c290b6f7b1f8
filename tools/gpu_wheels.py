"""Packages for tests on a machine with a GPU that has PyTorch and JAX, and maybe no network.

    python -m tools.gpu_wheels pack --python 3.12     # here: writes build/gpu-wheels.tar.xz, to carry to the machine
    python -m tools.gpu_wheels install                # there: makes build/gpu, an environment; `make test-gpu` does it

The environment has the packages of the Python that makes it, and before them those that are carried. Without the
archive they are installed from the network.
"""

import argparse
import json
import site
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHIVE, ENVIRONMENT = ROOT / "build" / "gpu-wheels.tar.xz", ROOT / "build" / "gpu"

FOR_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
TOOLS = ("pip", "setuptools>=77")
BUILT = "antlr4-python3-runtime==4.9.*"
"""What Hydra needs, and is only published as source code."""

PRESENT = {"jax", "jaxlib", "ml-dtypes", "numpy", "opt-einsum", "pillow", "scipy", "torch"}
"""What comes with PyTorch, torchvision and JAX, whose versions for the GPU are those of the machine."""

UNUSED = {"grpcio", "markdown", "markupsafe", "pyarrow", "tensorboard-data-server", "werkzeug"}
"""What these tests do not import: tables of evaluations, and the server of TensorBoard."""

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


def requirements() -> list[str]:
    """Returns what the package needs, and the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tests = [line for line in project["optional-dependencies"]["dev"] if line.split(">")[0] in FOR_TESTS]
    return [*project["dependencies"], *tests]


def pack(python: str, machine: str, archive: Path) -> None:
    """Downloads the wheels for a version of Python on Linux, and writes them to an archive.

    Wheels are stored uncompressed: the archive as a whole becomes a third smaller.
    """
    platforms = [f"--platform={name}_{machine}" for name in PLATFORMS]
    chosen = ["--only-binary=:all:", f"--python-version={python}", *platforms]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _pip("wheel", "--no-deps", f"--wheel-dir={folder}", BUILT)
        report = folder / "report.json"
        options = ["--dry-run", "--ignore-installed", f"--report={report}", f"--target={folder / 'none'}"]
        _pip("install", *options, *chosen, f"--find-links={folder}", *requirements(), *TOOLS)
        found = [one["metadata"] for one in json.loads(report.read_text("utf-8"))["install"]]
        left_out = PRESENT | UNUSED | {BUILT.split("=")[0]}
        wanted = [f"{one['name']}=={one['version']}" for one in found if _normal(one["name"]) not in left_out]
        _pip("download", "--no-deps", *chosen, f"--dest={folder}", *wanted)
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:xz") as written:
            for wheel in sorted(folder.glob("*.whl")):
                _store_uncompressed(wheel)
                written.add(wheel, wheel.name)
    print(f"{archive}: {len(wanted) + 1} wheels, {archive.stat().st_size / 2**20:.1f} MiB")


def _store_uncompressed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        contents = [(entry, packed.read(entry)) for entry in packed.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as stored:
        for entry, content in contents:
            entry.compress_type = zipfile.ZIP_STORED
            stored.writestr(entry, content)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def install(archive: Path, environment: Path) -> None:
    """Makes the environment, and installs this package into it, editable."""
    venv.create(environment, clear=True, symlinks=True)
    python = environment / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Not `--system-site-packages`: of an environment, that would be the packages of the Python below it.
    lines = [f"import site; site.addsitedir({parent!r})\n" for parent in site.getsitepackages()]
    Path(own.stdout.strip(), "parent.pth").write_text("".join(lines), "utf-8")
    if not archive.exists():
        print(f"there is no {archive}: packages are installed from the network", flush=True)
        _pip("--python", str(python), "install", "--editable", str(ROOT), *requirements())
        return
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as carried:
            carried.extractall(folder, filter="data")
        wheels = sorted(str(wheel) for wheel in Path(folder).glob("*.whl"))
        pip = next(wheel for wheel in wheels if Path(wheel).name.startswith("pip-"))
        offline = [python, f"{pip}/pip", "--quiet", "install", "--no-index", "--no-deps", "--no-warn-script-location"]
        subprocess.run([*offline, "--ignore-installed", *wheels], check=True)
        subprocess.run([*offline, "--no-build-isolation", "--editable", ROOT], check=True)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--no-input", *arguments], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Packs or installs."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_wheels", description=__doc__)
    parser.add_argument("what", choices=["pack", "install"])
    parser.add_argument("--python", default="3.12", help="the Python of the machine (default 3.12)")
    parser.add_argument("--machine", default="x86_64", help="its processor (default x86_64)")
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    options = parser.parse_args(arguments)
    if options.what == "pack":
        pack(options.python, options.machine, options.archive)
    else:
        install(options.archive, options.environment)


if __name__ == "__main__":
    main()
