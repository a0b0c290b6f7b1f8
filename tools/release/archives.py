"""Builds the sdist and, from it, the wheel. The same commit gives the same bytes, on every machine with the same tools.

Wheels take their times from SOURCE_DATE_EPOCH. Sdists of setuptools do not: they have the times, owners and permissions
of the files on this disk, so they are written anew here.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path


def commit_time(root: Path) -> int:
    """Returns SOURCE_DATE_EPOCH, or the time of the last commit: both in seconds since 1970."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, check=True, capture_output=True, text=True)
    return int(shown.stdout)


def build(root: Path, dist: Path, scratch: Path, epoch: int) -> tuple[Path, Path]:
    """Writes both into `dist`, unpacks the sdist in `scratch`, and returns the paths of the sdist and the wheel."""
    os.umask(0o022)  # permissions are part of the archives
    dist.mkdir(parents=True, exist_ok=True)
    _run("--sdist", root, dist, epoch)
    [sdist] = dist.glob("*.tar.gz")
    normalise(sdist, epoch)
    _unpack(sdist, scratch)
    _run("--wheel", scratch / sdist.name.removesuffix(".tar.gz"), dist, epoch)
    _unpack(sdist, scratch)  # the build has left files there
    [wheel] = dist.glob("*.whl")
    return sdist, wheel


def _unpack(sdist: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")


def _run(what: str, source: Path, dist: Path, epoch: int) -> None:
    command = [sys.executable, "-m", "build", what, "--outdir", str(dist.resolve()), str(source)]
    # Isolated as for everybody, unless the tools are here and the network is not.
    command += os.environ.get("BUILD_ARGS", "").split()
    done = subprocess.run(
        command, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(done.stdout.decode())


def normalise(sdist: Path, epoch: int) -> None:
    """Writes a `.tar.gz` anew: sorted, with one time, no owner, and permissions that depend on no umask.

    Of the `.egg-info` setuptools packs a list of files alone, which Python takes for a package without metadata.
    """
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            if ".egg-info" in member.name:
                continue
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, content)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())


def untracked(sdist: Path, root: Path) -> list[str]:
    """Returns the files of an sdist that are neither in git nor written by setuptools."""
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    listed = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True).stdout
    written = {"PKG-INFO", "setup.cfg"}
    return sorted(inside - set(listed.split("\n")) - written)
