"""What `make release` writes beside the two archives, and that they have the same bytes from the same commit."""

import hashlib
import io
import json
import tarfile
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from tools.release import archives, changes, recipe, sbom

import everstep

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


# -- metadata --------------------------------------------------------------------------------------------------------


def test_an_index_can_show_the_package():
    assert {"description", "readme", "license", "authors", "keywords", "classifiers"} <= set(PROJECT)
    assert not [line for line in PROJECT["classifiers"] if line.startswith("License ::")], "license says it"
    assert all((ROOT / file).is_file() for file in PROJECT["license-files"])


def test_the_sdist_takes_every_folder_and_file():
    manifest = (ROOT / "MANIFEST.in").read_text("utf-8").split()
    written = {"build", "dist", "site", "runs", "setup.cfg", "PKG-INFO", "LICENSE", "README.md", "pyproject.toml"}
    own = {".git", ".ci", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__"}
    assert not [path.name for path in ROOT.iterdir() if path.name not in {*manifest, *written, *own}]


# -- the changelog ---------------------------------------------------------------------------------------------------

CHANGELOG = """# Changes

## Unreleased (0.3.0)

- `a`: coming

## 0.2.10, 1 May 2027

- `b`: newer

### Breaking

- `c`: gone

## 0.2.1

- `d`: older
"""


@pytest.mark.parametrize(
    ("version", "lines"),
    [("0.3.0", ["`a`: coming"]), ("0.2.10", ["`b`: newer", "`c`: gone"]), ("0.2.1", ["`d`: older"])],
)
def test_a_version_has_its_own_changes(version, lines):
    text = changes.section(CHANGELOG, version)
    assert text.startswith(f"# Everstep {version}\n")
    assert [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")] == lines


def test_a_version_without_changes_is_no_release():
    with pytest.raises(ValueError, match=r"no section for 0\.2"):
        changes.section(CHANGELOG, "0.2")
    assert changes.is_unreleased(CHANGELOG, "0.3.0")
    assert not changes.is_unreleased(CHANGELOG, "0.2.1")


def test_this_version_has_changes():
    assert "\n- " in changes.section((ROOT / "CHANGELOG.md").read_text("utf-8"), everstep.__version__)


# -- the conda recipe ------------------------------------------------------------------------------------------------


def conda_recipe():
    return (ROOT / "conda" / "recipe.yaml").read_text("utf-8")


def test_the_recipe_needs_what_the_package_needs():
    read = yaml.safe_load(conda_recipe())
    python, *needed = read["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert f">={read['context']['python_min']}" == PROJECT["requires-python"]
    assert [Requirement(line) for line in needed] == [Requirement(line) for line in PROJECT["dependencies"]]
    assert read["about"]["summary"] == PROJECT["description"]
    assert read["about"]["license"] == PROJECT["license"]
    assert read["about"]["license_file"] == PROJECT["license-files"]
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert read["build"]["python"]["entry_points"] == commands


def test_the_recipe_is_filled_for_a_version():
    read = yaml.safe_load(recipe.filled(conda_recipe(), "1.2.3", "f" * 64))
    assert (read["context"]["version"], read["source"]["sha256"]) == ("1.2.3", "f" * 64)
    assert yaml.safe_load(conda_recipe())["context"]["version"] == everstep.__version__


# -- the archives ----------------------------------------------------------------------------------------------------


def packed(path, names, mtime, mode, owner):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"net-1.0/{name}")
            member.size, member.mtime, member.mode, member.uname = len(name), mtime + 0.25, mode, owner
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_an_sdist_does_not_depend_on_the_disk(tmp_path):
    """On when and by whom the files were written, on the umask, nor on the order in which they were found."""
    listed = "src/net.egg-info/SOURCES.txt"  # without PKG-INFO beside it
    one = packed(tmp_path / "one.tar.gz", ["b.py", "a.py", listed], 1_700_000_000, 0o664, "ada")
    other = packed(tmp_path / "other.tar.gz", ["a.py", "b.py"], 1_800_000_000, 0o600, "bob")
    for path in (one, other):
        archives.normalise(path, 1_750_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        assert archive.getnames() == ["net-1.0/a.py", "net-1.0/b.py"]
        assert archive.extractfile("net-1.0/b.py").read() == b"b.py"
        assert {(member.mtime, member.mode) for member in archive} == {(1_750_000_000, 0o644)}


def test_a_program_stays_executable(tmp_path):
    path = packed(tmp_path / "one.tar.gz", ["run"], 0, 0o700, "ada")
    archives.normalise(path, 0)
    with tarfile.open(path) as archive:
        assert archive.getmember("net-1.0/run").mode == 0o755


# -- the bill of materials -------------------------------------------------------------------------------------------


def installed(folder, name, version, *lines):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]))


@pytest.fixture
def bill(tmp_path):
    """That of a package that needs two others, and a third one if `gpu` is asked for."""
    (tmp_path / "net.whl").write_bytes(b"wheel")
    lines = ["Requires-Dist: Data_Kit>=1", "Requires-Dist: fast; extra == 'gpu'", "Requires-Dist: absent"]
    installed(tmp_path, "net", "1.0", "Provides-Extra: gpu", *lines)
    installed(tmp_path, "data.kit", "2.0", "License-Expression: MIT", "Requires-Dist: low")
    installed(tmp_path, "low", "3.0", "License: BSD", "Requires-Dist: data-kit")
    installed(tmp_path, "fast", "4.0")
    installed(tmp_path, "pip", "5.0")

    def read(*extras):
        return json.loads(sbom.bill("net", distributions(path=[str(tmp_path)]), tmp_path / "net.whl", 0, extras))

    return read


def test_a_bill_lists_what_is_needed(bill):
    read = bill()
    assert (read["bomFormat"], read["specVersion"], read["metadata"]["timestamp"]) == (
        "CycloneDX",
        "1.6",
        "1970-01-01T00:00:00Z",
    )
    own = read["metadata"]["component"]
    assert own["purl"] == "pkg:pypi/net@1.0"
    assert own["hashes"][0]["content"] == hashlib.sha256(b"wheel").hexdigest()
    assert [one["purl"] for one in read["components"]] == ["pkg:pypi/data-kit@2.0", "pkg:pypi/low@3.0"]
    assert [one.get("licenses") for one in read["components"]] == [
        [{"expression": "MIT"}],
        [{"license": {"name": "BSD"}}],
    ]
    needs = {each["ref"]: each["dependsOn"] for each in read["dependencies"]}
    assert needs == {
        "pkg:pypi/net@1.0": ["pkg:pypi/data-kit@2.0"],
        "pkg:pypi/data-kit@2.0": ["pkg:pypi/low@3.0"],
        "pkg:pypi/low@3.0": ["pkg:pypi/data-kit@2.0"],
    }


def test_a_bill_has_the_extras_that_were_installed(bill):
    assert "pkg:pypi/fast@4.0" in [one["purl"] for one in bill("gpu")["components"]]


def test_a_bill_is_the_same_every_time(bill):
    assert bill() == bill()
    assert bill()["serialNumber"] != bill("gpu")["serialNumber"]
