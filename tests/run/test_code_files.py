"""The files that a run has imported."""

import importlib.util
import sys

from everstep.run.code_files import imported_change, imported_files, with_files_of


def imported(monkeypatch, path, text="x = 1\n"):
    """Imports a file as a module of its name."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)


def test_files_of_the_user_count_and_neither_others_nor_generated_ones(tmp_path, monkeypatch):
    root = tmp_path / "project"
    imported(monkeypatch, root / "imported_model.py")
    imported(monkeypatch, tmp_path / "elsewhere" / "generated_code.py")
    imported(monkeypatch, tmp_path / "lib" / "helper_on_path.py")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (root / "unrelated.py").write_text("")
    names = imported_files(root)
    assert "imported_model.py" in names
    assert str(tmp_path / "lib" / "helper_on_path.py") in names
    assert not [name for name in names if "generated" in name or "unrelated" in name or "site-packages" in name]
    assert not [name for name in names if "/everstep/" in name]


def test_a_change_names_the_files(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = {"commit": "0" * 40, "files": {"a.py": "0", "b.py": "0"}}
    now = with_files_of(before, {"commit": "1" * 40}, tmp_path)
    assert imported_change(before, now) == "a.py, b.py"
    assert imported_change(now, now) == ""
    assert imported_change({"commit": "0" * 40}, now).startswith("commit 0000000000 -> commit 1111111111")
