"""Projects of the other templates work as they are, and `everstep new` works from a wheel."""

import shutil
import sysconfig
import zipfile

import keras
import pytest
from installed import SOURCE, TREE, Environment, build_isolation

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1500)]


@pytest.mark.backend
def test_a_project_of_components(tmp_path):
    environment = Environment(tmp_path / "venv", backend=keras.backend.backend())
    environment.run(tmp_path, "-m", "everstep", "new", "demo", "--template", "components")
    done = environment.run(tmp_path / "demo", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout
    config = tmp_path / "demo" / "runs" / "baseline" / "config.yaml"
    text = config.read_text().replace("epochs: 5", "epochs: 1").replace("samples: 10000", "samples: 500")
    config.write_text(text)
    environment.run(tmp_path / "demo", "-m", "everstep", "run", "baseline")
    assert (tmp_path / "demo" / "runs" / "baseline" / "training" / "run.json").is_file()


@pytest.mark.backend
def test_a_project_of_a_task(tmp_path):
    environment = Environment(tmp_path / "venv", backend=keras.backend.backend())
    environment.run(tmp_path, "-m", "everstep", "new", "my-demo", "--template", "task")
    environment.install(tmp_path / "my-demo")
    done = environment.run(tmp_path / "my-demo", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout
    words = ("trainer.train_steps=20", "--model-dir", "runs/short", "--no-export")
    environment.run(tmp_path / "my-demo", "-m", "everstep", "train", "my_demo/digits", *words)
    assert (tmp_path / "my-demo" / "runs" / "short" / "run.json").is_file()


def test_a_wheel_has_the_templates(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "tree" / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(TREE / name, tmp_path / "tree" / name)
    packages = sysconfig.get_paths()["purelib"]
    builder = Environment(tmp_path / "builder", paths=())
    builder.run(tmp_path / "tree", "-m", "pip", "wheel", "-q", "--no-deps", *build_isolation(), "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if name.startswith("everstep/projects/templates/")}
    templates = SOURCE / "everstep" / "projects" / "templates"
    assert packed == {f"everstep/{path.relative_to(SOURCE / 'everstep')}" for path in templates.rglob("*.tmpl")}
    other = Environment(tmp_path / "other", paths=())
    other.run(tmp_path, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", wheel)
    where = other.run(tmp_path, "-c", "import everstep; print(everstep.__file__)").stdout
    assert where.startswith(str(tmp_path / "other"))
    assert packages not in where
    other.run(tmp_path, "-m", "everstep", "new", "demo")
    assert (tmp_path / "demo" / ".gitignore").is_file()
    assert (tmp_path / "demo" / "data" / "raw" / "mnist.npz").stat().st_size > 10**7
