"""The structure of the package: which part may import which, and what must not be in it.

CONTRIBUTING.md states the same rules for people.
"""

import ast
import functools
import graphlib
import itertools
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.rooms import rooms

import everstep
from everstep.doors import listed
from everstep.entry_points import SHIPPED

pytestmark = pytest.mark.slow

IMPORT = r"from (everstep[\w.]*) import (\([^)]*\)|[^\n(]+)"

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "everstep"

# Lowest first. A part imports only parts on earlier lines; parts on one line do not import each other. A part is a
# folder or file of the package, or a folder inside one that is on another line than the rest of it.
LINES = (
    "redaction startup_messages keras_internals entry_points notebook extras",
    "log_lines",
    "errors",
    "doors private_names",
    "types",
    "liveness storage",
    "gang",
    "checkpoint",
    "checkpoint.remote",
    "config",
    "task.optim",
    "data",
    "task.grad",
    "task",
    "task.multitask",
    "engine",
    "evaluation",
    "tracking export",
    "loop",
    "loop.actions",
    "run",
    "report trained",
    "experiment_config argument_order",
    "experiment",
    "fast_dev_run",
    "frontends",
    "frontends.fit reproduce launch",
    "forks",
    "cli",
    "__main__",
    "projects",
    "projects.catalog",
    "projects.training projects.components",
    "projects.flow",
    "recipes",
    "recipes.bct recipes.hub",
    "submit",
    "sweeps tuner",
    "sweeps.commands",
    "projects.commands",
    "model_garden",
    "testing",
    "actions bct catalog components flow multitask optim training",
)
LEVEL = {part: level for level, line in enumerate(LINES) for part in line.split()}

# They stand beside the core, and use it as any package could.
COMPANIONS = {"projects", "model_garden", "sweeps", "tuner", "submit", "recipes"}
# What they need of each other is imported where it is used, so that each works without the others.
AMONG_COMPANIONS = {
    ("projects", "recipes"): "the projects that `everstep new` creates begin with the digits that ship",
    ("projects", "sweeps"): "runs of components and tasks of flows can be swept; `everstep flow -m` is a sweep",
    ("submit", "projects"): "what is submitted may be a run of a project: its config file and code are copied",
    ("sweeps", "submit"): "workers on a cluster are submitted",
}

BACKENDS = {"tensorflow", "jax", "torch"}
# The gang agrees through JAX's coordination service on every backend; JAX is a dependency of the checkpoints.
MAY_NAME_BACKENDS = {"gang", "task.grad", "engine", "data", "export", "trained"}
# These two only list packages whose versions they report; their behaviour does not depend on a name.
MAY_LIST_BACKENDS = {"everstep.cli.doctor", "everstep.run.environments"}

# A project may allow pickles in its own pyproject.toml; these modules check that before they load anything.
MAY_LOAD_PICKLES = {"everstep.projects.components.generic_trainer", "everstep.projects.catalog.pickles"}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}

# Commands, entry points and recipes are imported without Keras: what brings it is imported where it is used.
MAY_IMPORT_LATE = {"cli", "frontends", "projects", "recipes", "submit", "sweeps", "tuner", "model_garden"}

# Each of these folders holds several rooms.
FLOORS = {"frontends", "projects", "recipes"}

# The first selects the backend; the second registers a task, and needs its configuration for that.
LOADING_DOORS = {"everstep", "everstep.task.multitask"}

PUBLIC_NAMES = [
    "ClassificationTask",
    "CompiledTask",
    "Config",
    "Controller",
    "DataConfig",
    "EarlyStopping",
    "ExperimentConfig",
    "Hook",
    "Mode",
    "OneOfConfig",
    "OptimizationConfig",
    "ProgressivePolicy",
    "ProgressiveTrainerConfig",
    "RuntimeConfig",
    "StopAt",
    "Stream",
    "Task",
    "TaskConfig",
    "Trainer",
    "TrainerConfig",
    "Training",
    "TrainingError",
    "UsageError",
    "cond",
    "fit",
    "fork",
    "get_distribution_strategy",
    "get_exp_config",
    "get_labels",
    "get_task",
    "get_tfrecord_dataset",
    "get_train_ds",
    "get_valid_ds",
    "load",
    "predict",
    "register_experiment",
    "register_task",
    "run_experiment",
    "show_report",
    "sweep",
    "value_and_grad",
]


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    return {_dotted(path): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree, which many tests look through."""
    return list(ast.walk(tree))


def _dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """The part of the package a module belongs to: the longest prefix of its name that is in `LINES`."""
    names = module.split(".")[1:]
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LEVEL), names[0] if names else "")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields what a tree imports, also in functions and under TYPE_CHECKING."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def doors() -> dict[str, dict[str, str]]:
    """The doors, and files at the top level that are written like one: each name, and the module that it is from."""
    return {module: listed(ast.unparse(tree)) for module, tree in modules().items() if _calls(tree, "lazy_names")}


def _calls(tree: ast.Module, function: str) -> bool:
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    return any(isinstance(value, ast.Call) and ast.unparse(value.func) == function for value in values)


def own_names(tree: ast.AST) -> set[str]:
    """The modules and names of this package that a tree imports.

    Where `importlib` is imported, a module's name as text is an import too; so is that of a package with a resource.
    """
    names = set(imported(tree))
    if names & {"importlib", "importlib.metadata", "importlib.resources"}:
        texts = {n.value for n in nodes(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names |= texts & set(modules())
    return {name for name in names if name.startswith("everstep.")}


def defining(name: str) -> str:
    """The module that an imported name is from, through any number of doors."""
    if name in modules():
        return name
    package, _, last = name.rpartition(".")
    module = doors().get(package, {}).get(last, package)
    return package if module == package else defining(f"{module}.{last}")


def own_imports(tree: ast.AST) -> set[str]:
    """The modules of this package that a tree imports; a name from a module counts as the module that it is from."""
    return {defining(name) for name in own_names(tree)} & set(modules())


def edges() -> Iterator[tuple[str, str]]:
    """Yields every import inside the package, except those that a door hands on."""
    for module, tree in modules().items():
        if module not in doors() and module != "everstep.entry_points":
            yield from ((module, name) for name in sorted(own_imports(tree)) if name != "everstep")


def room(module: str) -> str:
    """The room that a module is in: a folder at the top level, or one on a floor of several rooms."""
    names = [*module.split(".")[1:], "", ""]
    nested = names[0] in FLOORS and f"everstep.{names[0]}.{names[1]}" in packages()
    return f"{names[0]}.{names[1]}" if nested else names[0]


@functools.cache
def packages() -> set[str]:
    """Every package by its dotted name."""
    return {_dotted(path) for path in PACKAGE.rglob("__init__.py")}


def test_imports_point_one_way():
    unknown = {part(name) for name in modules() if name != "everstep"} - set(LEVEL)
    assert not unknown, f"give {sorted(unknown)} a place in LINES"
    wrong = [
        f"{importer} imports {name}"
        for importer, name in edges()
        if part(importer) != part(name) and LEVEL[part(importer)] <= LEVEL[part(name)]
    ]
    assert not wrong, f"a part imports only parts above it: {wrong}"


def test_the_core_imports_no_companion():
    """What users import from is listed at the top level, and loaded when it is used."""
    wrong = [
        f"{importer} imports {name}"
        for importer, name in edges()
        if importer.split(".")[1] not in {*COMPANIONS, "testing"} and name.split(".")[1] in COMPANIONS
    ]
    assert not wrong, f"the core finds companions by entry points: {wrong}"


def test_what_companions_need_of_each_other():
    pairs = {(importer.split(".")[1], name.split(".")[1]) for importer, name in edges()}
    assert {(a, b) for a, b in pairs if a != b and {a, b} <= COMPANIONS} == set(AMONG_COMPANIONS)
    # These are themselves imported where they are used, the targets by sweeps.
    used_late = {"everstep.sweeps.clusters", *SHIPPED["everstep.sweep_targets"].values()}
    at_once = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and module.count(".") and (node.module or "").count(".")
        if (module.split(".")[1], str(node.module).split(".")[1]) in AMONG_COMPANIONS
        if module not in used_late
    ]
    assert not at_once, f"import it inside the function that needs it: {at_once}"


def test_companions_use_no_private_names_of_the_core():
    private: dict[bool, set[str]] = {True: set(), False: set()}  # by whether a companion defines them
    for module, tree in modules().items():
        private[is_companion(module)] |= {
            name
            for node in nodes(tree)
            for name in [_defined(node)]
            if isinstance(name, str) and re.match(r"_[a-z]", name)
        }
    used = [
        f"{module}:{node.lineno} {node.attr}"
        for module, tree in modules().items()
        if is_companion(module)
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr in private[False] - private[True]
    ]
    assert not used, f"what a companion needs, the core offers by a public name: {used}"


def is_companion(module: str) -> bool:
    return module.partition(".")[2].partition(".")[0] in COMPANIONS


def _defined(node: ast.AST) -> str | None:
    """The name of a function or class, or of a variable or attribute that is set."""
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return getattr(node, "attr", None) or getattr(node, "id", None)
    return getattr(node, "name", None)


def test_no_import_cycles():
    graph: dict[str, set[str]] = {}
    for importer, name in edges():
        graph.setdefault(importer, set()).add(name)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_own_modules_are_imported_at_the_top():
    inside = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if part(module).partition(".")[0] not in MAY_IMPORT_LATE
        for function in nodes(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in nodes(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and own_imports(node)
    ]
    assert not inside, f"only {sorted(MAY_IMPORT_LATE)} import own modules inside functions: {inside}"


def test_rooms_are_entered_by_their_doors():
    """Also in functions, under TYPE_CHECKING, and by a name as text; entry points of packages name modules."""
    inside = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if module not in ("everstep.__main__", "everstep.entry_points")
        for name in sorted(own_names(tree))
        for target in [name if name in modules() else name.rpartition(".")[0]]
        if room(module) != room(target) and target not in packages() and target.count(".") > 1
        if name.rpartition(".")[2] not in doors().get(name.rpartition(".")[0], {})
    ]
    assert not inside, f"import it from the package, and list it in its __init__.py: {inside}"


def test_doors_list_what_others_use():
    """Other rooms, tests, pages, examples, tools. A door that lists more is wider than it needs to be."""
    used = {name for module, tree in modules().items() if module not in doors() for name in own_names(tree)}
    used |= {name for door in doors() for name in own_names(modules()[door]) if room(name) != room(door)}
    folders = [ROOT / folder for folder in ("docs", "examples", "benchmarks", "tools", "tests")]
    paths = [path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".md")]
    text = "\n".join(path.read_text("utf-8") for path in [ROOT / "README.md", *paths])
    used |= {f"{source}.{name}" for source, names in re.findall(IMPORT, text) for name in re.findall(r"\w+", names)}
    used |= set(re.findall(r"everstep(?:\.\w+)+", text))
    listed_names = {f"{door}.{name}" for door, names in doors().items() if door in packages() for name in names}
    assert not listed_names - used - {f"everstep.{name}" for name in PUBLIC_NAMES}


def test_doors_load_nothing():
    for door in doors().keys() - LOADING_DOORS:
        eager = [node for node in modules()[door].body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert set(itertools.chain.from_iterable(map(own_imports, eager))) <= {"everstep.doors"}, door


@pytest.mark.parametrize("package", sorted(packages() - {"everstep"}))
def test_a_door_says_which_files_are_behind_it(package):
    folder = PACKAGE.parent.joinpath(*package.split("."))
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    files |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    said = re.findall(r"(?m)^(\w+(?:\.py|/)) ", ast.get_docstring(modules()[package]) or "")
    assert sorted(said) == sorted(files)


def test_the_front_door_names_every_package_and_file():
    present = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    present |= {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    said = re.findall(r"(\w+\.py|\b\w+/)(?=[ ,;]|$)", ast.get_docstring(modules()["everstep"]) or "", re.MULTILINE)
    assert set(said) == present


def test_the_table_of_rooms(tmp_path):
    door = "__getattr__, __dir__ = lazy_names(__name__, __file__)\nif TYPE_CHECKING:\n    "
    files = {
        "__init__": f"{door}from everstep.b import g",
        "a/__init__": f"{door}from everstep.b.c import f",
        "a/x": "from everstep.b import f, g\nfrom everstep.a.y import h\ndef late():\n    from everstep.b.c import k",
        "a/y": "from everstep import g, storage",
        "b/__init__": f"{door}from everstep.b import f",
        "b/f": "",
        "b/c": "",
        "old/__init__": "",
        "old/part": "",
        "storage": "",
        "sweeps/__init__": "",
        "launch/child": "from everstep.sweeps import s\nfrom everstep.old import part",
    }
    for name, text in files.items():
        path = tmp_path / "src" / "everstep" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {room.name: (sorted(room.names), sorted(room.modules)) for room in rooms(tmp_path) if room.names}
    names = ["everstep.b.c.k", "everstep.b.f", "everstep.b.g", "everstep.g", "everstep.storage"]
    assert found == {
        "a": (names, ["everstep", "everstep.b", "everstep.b.c", "everstep.storage"]),
        "launch": (["everstep.old.part", "everstep.sweeps.s"], ["everstep.old.part", "everstep.sweeps"]),
    }


def test_shipped_entry_points_are_those_of_the_installation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"] == SHIPPED


def test_lower_layers_name_no_files_of_entry_points():
    files = {
        "logs",
        "run_id.txt",
        "job_meta.json",
        "flow.yaml",
        "logged.jsonl",
        "exported",
        "export.json",
        "savedmodel",
    }
    files |= {"exported/config.yaml", "exported/export.json", "exported/savedmodel", "exported/model.pt2"}
    files |= {"validation_report.csv", "eval_report.csv", "eval_report_summary.csv", "reports/metrics.json"}
    # `logs` and `exported` are also keys of states and pages; as parts of a path they would follow a `/`.
    named = [
        f"{module}:{node.lineno} {node.value!r}"
        for module, tree in modules().items()
        if module != "everstep" and LEVEL[part(module)] < LEVEL["projects"]
        for parent in nodes(tree)
        for node in ast.iter_child_nodes(parent)
        if isinstance(node, ast.Constant)
        and node.value in files - (set() if isinstance(parent, ast.BinOp) else {"logs", "exported"})
    ]
    assert not named, f"they belong into projects/layouts.py, and are found by everstep.run.layout_registry: {named}"


def test_files_are_named_by_topic():
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [path for path in PACKAGE.rglob("*.py") if path.stem in nameless]


def test_backends_are_named_in_few_places():
    named = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if part(module) not in MAY_NAME_BACKENDS and module not in MAY_LIST_BACKENDS
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BACKENDS
    ]
    assert not named, f"what depends on the backend belongs to {sorted(MAY_NAME_BACKENDS)}: {named}"


def test_backends_are_imported_in_few_places():
    importing = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if part(module) not in MAY_NAME_BACKENDS
        for name in imported(tree)
        if name.split(".")[0] in BACKENDS
    ]
    assert not importing


def test_private_modules_of_keras_are_named_in_one_place():
    named = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if module != "everstep.keras_internals"
        for node in nodes(tree)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and "keras.src" in node.value)
        or (isinstance(node, ast.Import) and any(alias.name.startswith("keras.src") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"))
        or (isinstance(node, ast.Attribute) and ast.unparse(node).startswith("keras.src"))
    ]
    assert not named, f"a move inside Keras is repaired in keras_internals.py alone: {named}"


def test_no_assert():
    found = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if part(module) != "testing"
        for node in nodes(tree)
        if isinstance(node, ast.Assert)
    ]
    assert not found, f"raise UsageError or TrainingError with a remedy instead: {found}"


def test_no_pickle():
    found = [(module, name) for module, tree in modules().items() for name in imported(tree)]
    assert not [pair for pair in found if pair[1].split(".")[0] in PICKLES]
    by_name = [
        module
        for module, tree in modules().items()
        if any(isinstance(node, ast.Constant) and node.value in PICKLES for node in nodes(tree))
    ]
    assert set(by_name) <= MAY_LOAD_PICKLES, "a pickle's module is named, and perhaps imported by that name"
    allowed = [
        f"{module}:{node.value.lineno}"
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", None)
    ]
    assert not allowed


def test_every_todo_has_an_issue():
    loose = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
    paths = [path for folder in ("src", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert not [str(path) for path in paths if loose.search(path.read_text("utf-8"))]


def test_no_public_name_is_also_a_module():
    """When a module is first imported, Python sets it as an attribute of its package, over any other of that name."""
    taken = []
    for path in PACKAGE.rglob("__init__.py"):
        files = {one.stem for one in path.parent.glob("*.py")}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
            if isinstance(node, ast.ImportFrom) and node.module != package:
                taken += [f"{path.parent.name}.{one.name}" for one in node.names if one.name in files]
    assert not taken


def test_public_names():
    assert everstep.__all__ == PUBLIC_NAMES
    assert all(callable(getattr(everstep, name)) for name in PUBLIC_NAMES)
    with pytest.raises(AttributeError, match="trian"):
        everstep.trian  # noqa: B018


def test_types_are_shipped():
    assert (PACKAGE / "py.typed").is_file()


def test_importing_loads_no_backend():
    heavy = ["keras", "jax", "tensorflow", "torch", "mlflow"]
    done = _python(f"""
        import sys
        import everstep, everstep.cli.main, everstep.cli.train, everstep.recipes
        everstep.get_exp_config("mnist/mlp").validate()
        print([name for name in {heavy} if name in sys.modules])
    """)
    assert done == "[]"


def test_arrays_train_without_any_extra_and_without_installing(tmp_path):
    """With the required dependencies alone, as imports of all others fail; the package is on PYTHONPATH."""
    done = _python(
        """
        import importlib.machinery, importlib.metadata, sys

        find, points = importlib.metadata.Distribution.from_name, importlib.metadata.entry_points

        def from_name(name):
            if name == "everstep":
                raise importlib.metadata.PackageNotFoundError(name)
            return find(name)

        importlib.metadata.Distribution.from_name = from_name
        none = importlib.metadata.EntryPoints()
        importlib.metadata.entry_points = lambda **of: points(**of) if of else none

        MISSING = {"tensorflow", "torch", "mlflow", "gin", "ray", "grain", "optuna", "submitit", "gcsfs", "s3fs"}
        MISSING |= {"pyarrow", "grpc", "werkzeug"}  # for tables of evaluations, and the server of TensorBoard

        class Without(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                return None if name.partition(".")[0] in MISSING else super().find_spec(name, path, target)

        sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without

        import everstep, keras, numpy as np

        class Line(everstep.Task):
            def build_model(self):
                return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

            def build_inputs(self, params, input_context=None):
                x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
                return x, x.sum(axis=1, keepdims=True)

            def build_losses(self, labels, model_outputs, aux_losses=None):
                return keras.ops.mean((labels - model_outputs) ** 2)

        params = everstep.ExperimentConfig()
        params.override({"trainer": {"train_steps": 6, "steps_per_loop": 3, "checkpoint_interval": 3}})
        _, logs = everstep.run_experiment(Line(), params, "run", verbose=False)
        from everstep.cli.main import main
        few = ["trainer.train_steps=2", "trainer.steps_per_loop=2", "trainer.validation_interval=2"]
        assert main(["train", "mnist/local", "--model-dir", "shipped", "--no-export", *few]) == 0
        print(keras.backend.backend(), sorted(MISSING & set(sys.modules)), logs["validation_loss"] > 0)
        """,
        cwd=tmp_path,
    )
    assert done == "jax [] True"
    assert {"run.json", "config.yaml", "checkpoints", "history.csv"} <= {p.name for p in (tmp_path / "run").iterdir()}
    assert [p.name for p in (tmp_path / "run" / "export").iterdir()] == ["model.keras"]
    assert (tmp_path / "shipped" / "checkpoints" / "2").is_dir()


def _python(code: str, cwd: Path = ROOT) -> str:
    """Runs code in a fresh process on JAX, which every installation has; returns the last line it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
