"""Keras's test files: found in the installed package, or downloaded, and copied with their models rewritten."""

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

_FILES = ("trainers/trainer_test.py", "callbacks/*_test.py")

_CONFTEST = """
import keras
import pytest


def skip_if_backend(backend, reason):
    return pytest.mark.skipif(keras.backend.backend() == backend, reason=reason)
"""
"""What the tests import from the `conftest.py` of Keras's repository, which no package contains."""


def copy(folder: Path) -> list[Path]:
    """Writes the test files into a folder, changed so that `everstep.fit` can take their models; returns them."""
    source = _installed()
    files = [file for pattern in _FILES for file in sorted(source.glob(pattern))]
    if not any(file.name == "trainer_test.py" for file in files):
        source = _downloaded(folder / "download")
        files = [file for pattern in _FILES for file in sorted(source.glob(pattern))]
    (folder / "conftest.py").write_text(_CONFTEST, "utf-8")
    return [_copied(file, folder / file.name) for file in files]


def _installed() -> Path:
    spec = importlib.util.find_spec("keras")
    if spec is None or spec.origin is None:
        raise SystemExit("Keras is not installed")
    return Path(spec.origin).parent / "src"


def _downloaded(folder: Path) -> Path:
    """Returns `keras/src` of the source package of the installed version."""
    wanted = f"keras=={importlib.metadata.version('keras')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", wanted]
    subprocess.run([*pip, "--dest", str(folder)], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("keras-*/keras/src"))


def _copied(file: Path, target: Path) -> Path:
    tree = _Models().visit(ast.parse(file.read_text("utf-8")))
    target.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return target


class _Models(ast.NodeTransformer):
    """`class A(Trainer, layers.Layer)` becomes `class A(keras.Model)`; `(Trainer, layers.Dense)`, `(Dense, Model)`."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Rewrites one class, and those inside it."""
        self.generic_visit(node)
        bases = [ast.unparse(base) for base in node.bases]
        if bases[:1] == ["Trainer"]:
            others = [base for base in bases[1:] if base != "layers.Layer"]
            node.bases = [ast.parse(base, mode="eval").body for base in [*others, "__import__('keras').Model"]]
        return node
