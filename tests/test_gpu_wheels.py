"""The environment for tests on a machine with a GPU: on top of another one, from wheels that are carried."""

import ensurepip
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools import gpu_wheels

pytestmark = pytest.mark.slow


def test_what_the_package_and_the_tests_need_is_carried():
    names = {line.split(">")[0].split("=")[0] for line in gpu_wheels.requirements()}
    assert {"keras", "orbax-checkpoint", "hydra-core", "pytest", "hypothesis"} <= names
    assert gpu_wheels.UNUSED & names == {"pyarrow"}


def test_wheels_keep_their_contents(tmp_path):
    wheel = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("some/__init__.py", "number = 1\n" * 1000)
    small = wheel.stat().st_size
    gpu_wheels._store_uncompressed(wheel)
    with zipfile.ZipFile(wheel) as stored:
        assert stored.testzip() is None
        assert stored.read("some/__init__.py") == b"number = 1\n" * 1000
    assert wheel.stat().st_size > 10 * small


@pytest.mark.full
def test_an_environment_on_top_of_this_one(tmp_path):
    bundled = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"), None)
    if bundled is None:
        pytest.skip("this Python brings no wheel of pip")
    carried = tmp_path / "carried-1-py3-none-any.whl"
    with zipfile.ZipFile(carried, "w") as wheel:
        wheel.writestr("carried.py", "number = 7\n")
        wheel.writestr("carried-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n")
        wheel.writestr("carried-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carried-1.dist-info/RECORD", "")
    with tarfile.open(tmp_path / "wheels.tar.xz", "w:xz") as archive:
        for wheel in (bundled, carried):
            archive.add(wheel, wheel.name)
    gpu_wheels.install(tmp_path / "wheels.tar.xz", tmp_path / "environment")
    code = "import carried, everstep, keras, sys; print(carried.number, everstep.__file__, sys.prefix)"
    command = [tmp_path / "environment" / "bin" / "python", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == [
        "7",
        str(gpu_wheels.ROOT / "src/everstep/__init__.py"),
        str(tmp_path / "environment"),
    ]
