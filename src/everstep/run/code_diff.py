"""How the code of a project differs from its last commit, as a patch: commit and patch together bring the code back.

New Python files that nobody has added yet are in it, too. The repository is only looked at: what git has to write for
that goes to a temporary folder.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep import redaction, storage

FILE = "code.diff"
"""What the patch is called in a run directory."""

MAX_BYTES = 5 * 2**20
"""A longer patch is not kept: it holds data."""

_SECONDS = 20.0
_DIFF = ("diff", "HEAD", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules")


def code_diff(path: storage.PathLike) -> bytes | None:
    """Returns how the repository around `path` differs from its last commit, empty where it does not.

    None where nobody can tell: there is no git, no repository or no commit, or the patch is too long.
    """
    top = git(path, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = top.decode("utf-8", "surrogateescape").removesuffix("\n")
    with contextlib.suppress(OSError), _looked_at(root) as settings:
        new = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py", settings=settings)
        if new:
            names = ("--pathspec-from-file=-", "--pathspec-file-nul")
            git(root, "add", "--intent-to-add", *names, given=new, settings=settings)
        found = git(root, *_DIFF, *_PREFIXES, settings=settings)
        return found if found is not None and len(found) <= MAX_BYTES else None
    return None


def digest(path: storage.PathLike) -> str | None:
    """Returns the sha256 of what `code_diff` returns; None where nothing differs, or nobody can tell."""
    found = code_diff(path)
    return hashlib.sha256(found).hexdigest() if found else None


def keep(directory: Path, path: storage.PathLike | None) -> None:
    """Writes the patch to a run directory, for its owner alone and without known secrets; an earlier one goes.

    Args:
      directory: The run directory.
      path: Where the code is; None where it is known to be that of its commit.
    """
    found = None if path is None else code_diff(path)
    if found:
        text = redaction.text(found.decode("utf-8", "surrogateescape"))
        storage.write_bytes(directory / FILE, text.encode("utf-8", "surrogateescape"))
        (directory / FILE).chmod(0o600)
    else:
        (directory / FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def _looked_at(root: str) -> Iterator[dict[str, str]]:
    """Yields settings with which git writes to a temporary folder whatever it has to write."""
    places = [git(root, "rev-parse", "--git-path", name) for name in ("index", "objects")]
    if any(place is None for place in places):
        raise FileNotFoundError(root)
    index, objects = (os.path.join(root, os.fsdecode(place or b"").removesuffix("\n")) for place in places)
    with tempfile.TemporaryDirectory(prefix="everstep-git-") as folder:
        if os.path.exists(index):
            shutil.copyfile(index, os.path.join(folder, "index"))
        os.mkdir(os.path.join(folder, "objects"))
        yield {
            "GIT_INDEX_FILE": os.path.join(folder, "index"),
            "GIT_OBJECT_DIRECTORY": os.path.join(folder, "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.abspath(objects),
        }


def git(
    path: storage.PathLike, *words: str, given: bytes | None = None, settings: Mapping[str, str] | None = None
) -> bytes | None:
    """Returns what git prints; None where there is no git, no repository, or no good answer in time.

    Args:
      path: The folder to call it in.
      *words: The command.
      given: What it reads.
      settings: Environment variables for it.
    """
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(path), *words],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            timeout=_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **(settings or {})},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
