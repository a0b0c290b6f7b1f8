"""The code that a run was made of, brought back beside the project: its commit, and the patch that the run has kept.

Files that git does not have, such as data, are linked. The repository itself is only read.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from everstep.errors import UsageError
from everstep.run.environment import git
from everstep.run.reproduce.evidence import Evidence


class Unknown(UsageError):
    """The code of a run cannot be brought back."""


def restore(original: Evidence, code: Path, into: Path) -> Path:
    """Returns what the folder `code` was when the run was made, in a new directory.

    Args:
      original: The run.
      code: The folder as it is now.
      into: Where to put the repository's files.

    Raises:
      Unknown: That is not possible; says why.
    """
    commit, top = original.record["code"].get("commit"), _top(code)
    if not commit:
        raise Unknown("the run was not made in a git repository")
    if top is None or git(top, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise Unknown(f"commit {str(commit)[:12]} is in no git repository around {str(code)!r}")
    _check_out(top, str(commit), into)
    if original.record["code"].get("dirty"):
        _patch(original, top, into)
    known, inside = _known(top), code.resolve().relative_to(top)
    if not (into / inside).is_dir() and any(path.is_relative_to(top / inside) for path in known):
        raise Unknown(f"commit {str(commit)[:12]} has no folder {str(inside)!r}: it had another name, or is newer")
    _link(top, into, known, {folder for path in known for folder in path.parents})
    return into / inside


def python_path(code: Path, into: Path) -> str:
    """Returns where Python finds the modules of a repository that was restored: those of an editable install, too."""
    top = _top(code)
    if top is None:
        return ""
    inside = [Path(path).resolve() for path in sys.path if path and Path(path).resolve().is_relative_to(top)]
    return os.pathsep.join(str(into / path.relative_to(top)) for path in inside)


def _top(code: Path) -> Path | None:
    found = git(code, "rev-parse", "--show-toplevel") if code.is_dir() else None
    return None if found is None else Path(os.fsdecode(found).removesuffix("\n")).resolve()


def _check_out(top: Path, commit: str, into: Path) -> None:
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="everstep-git-") as folder:
        variables = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        done = git(top, "read-tree", commit, variables=variables)
        if done is not None:
            done = git(top, "checkout-index", "--all", f"--prefix={into}/", variables=variables)
    if done is None:
        raise Unknown(f"commit {commit[:12]} cannot be checked out")


def _patch(original: Evidence, top: Path, into: Path) -> None:
    path = original.code_changes()
    if path is None:
        raise Unknown("files had changed since its commit, and how was not kept, or is not what it was")
    if not path.resolve().is_relative_to(top):  # a patch is code, and that of a run from elsewhere is anybody's
        raise Unknown(
            f"what had changed since its commit is in {str(path)!r}, outside the project, and is not run unasked"
        )
    command = ["git", "apply", "--binary", "--whitespace=nowarn", str(path)]
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(into.resolve().parent)}
    done = subprocess.run(command, cwd=into, env=alone, capture_output=True, text=True)
    if done.returncode:
        raise Unknown(f"what had changed since its commit does not fit: {' '.join(done.stderr.split())[:200]}")


def _known(top: Path) -> set[Path]:
    """Returns the sources as they are now: what the commit does not have of them was not there."""
    listed = git(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.py") or b""
    return {top / os.fsdecode(name) for name in listed.split(b"\0") if name}


def _link(source: Path, target: Path, left_out: set[Path], folders: set[Path]) -> None:
    """Links what is not there; of folders with sources, which the commit may not have had, all but those."""
    for entry in source.iterdir():
        there = target / entry.name
        made = not os.path.lexists(there)
        if there.is_dir() and not there.is_symlink() and entry.is_dir():
            _link(entry, there, left_out, folders)
        elif not made or entry.name in (".git", "__pycache__") or entry in left_out:
            continue
        elif entry in folders and not entry.is_symlink():
            there.mkdir()
            _link(entry, there, left_out, folders)
        else:
            there.symlink_to(entry, target_is_directory=entry.is_dir())
