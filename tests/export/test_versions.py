"""A version is complete or absent, even if the process that writes it is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.export import versions

pytestmark = pytest.mark.slow

# Loaded from its file, so that the child needs no Keras.
WRITER = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("versions", sys.argv[1])
versions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(versions)
for _ in range(100_000):
    with versions.new_version(pathlib.Path(sys.argv[2])) as version:
        for number in range(20):
            (version.temporary / "variables").mkdir(parents=True, exist_ok=True)
            (version.temporary / "variables" / str(number)).write_bytes(bytes(1000))
"""


def numbered(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


def test_a_killed_process_leaves_only_complete_versions(tmp_path):
    for round_ in range(4):
        before = len(numbered(tmp_path))
        child = subprocess.Popen([sys.executable, "-c", WRITER, versions.__file__, str(tmp_path)])
        try:
            while len(numbered(tmp_path)) < before + 3:
                assert child.poll() is None
            time.sleep(0.003 * round_)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        for version in numbered(tmp_path):
            files = list((version / "variables").iterdir())
            assert [file.stat().st_size for file in files] == [1000] * 20


def test_a_failed_version_leaves_no_files(tmp_path):
    def write(fails: bool) -> None:
        with versions.new_version(tmp_path) as version:
            version.temporary.mkdir()
            (version.temporary / "a").write_bytes(bytes(0 // (not fails)))

    write(fails=False)
    before = list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        write(fails=True)
    assert list(tmp_path.iterdir()) == before == numbered(tmp_path)
