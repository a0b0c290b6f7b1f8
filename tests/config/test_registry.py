"""Registries of tasks and experiments."""

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from everstep import entry_points
from everstep.config import (
    Config,
    experiments,
    get_exp_config,
    get_task,
    load_entry_points,
    lookup,
    register,
    register_experiment,
    register_task,
    registry,
)
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Digits(Config):
    size: int = 1


@dataclasses.dataclass
class WideDigits(Digits):
    pass


class DigitsTask:
    def __init__(self, config: Config, name: str = "") -> None:
        self.config, self.name = config, name


class Points:
    """Entry points of packages that are not installed."""

    def __init__(self, **loaders: Callable[[], object]) -> None:
        self.loaders = loaders

    def __call__(self, path: tuple[str, ...]) -> list[object]:
        return [
            type("Point", (), {"name": n, "value": n, "group": registry.ENTRY_POINTS, "load": staticmethod(f)})
            for n, f in self.loaders.items()
        ]


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_experiments", {})
    monkeypatch.setattr(entry_points, "_loaded", set())
    monkeypatch.setattr(entry_points, "_installed", Points())
    monkeypatch.setattr(entry_points, "SHIPPED", {})  # else they register here, and are missing in later tests


def first() -> Config:
    """The first one.

    At length.
    """
    return Digits()


def second() -> Config:
    return Digits()


def test_a_task_is_found_for_its_config_and_subclasses():
    assert register_task(Digits)(DigitsTask) is DigitsTask
    task = get_task(WideDigits(size=3), name="a")
    assert isinstance(task, DigitsTask)
    assert (task.config.size, task.name) == (3, "a")


def test_the_nearest_class_wins_and_a_function_may_replace_the_class():
    register_task(Digits)(DigitsTask)

    @register_task(WideDigits)
    def build(config: Config, **kwargs: str) -> str:
        return f"wide {config.size}"

    assert get_task(WideDigits(size=2)) == "wide 2"
    assert isinstance(get_task(Digits()), DigitsTask)


def test_tasks_that_are_refused():
    with raises_problem(reason="no task is registered for Digits"):
        get_task(Digits())
    register_task(Digits)(DigitsTask)
    register_task(Digits)(DigitsTask)
    with raises_problem(reason=r"a task for Digits is registered already, by .*DigitsTask"):
        register_task(Digits)(first)
    with raises_problem(key="@register_task(...)", reason="expected a config class"):
        register_task(DigitsTask)  # type: ignore[arg-type]


def test_every_call_returns_a_new_config():
    register_experiment("digits/mlp")(first)
    config = get_exp_config("digits/mlp")
    config.size = 9
    assert get_exp_config("digits/mlp") == Digits()


def test_names_form_a_tree():
    register_experiment("a/b")(first)
    register_experiment("a/c")(second)
    register_experiment("ab")(second)
    for name in ("a/b/c", "a"):
        with raises_problem(reason="inside the other"):
            register_experiment(name)(second)
    with raises_problem(reason=r"experiment 'a/b' is registered already, by .*first"):
        register_experiment("a/b")(second)
    for bad in ("", "/a", "a//b", "a b"):
        with raises_problem(key="@register_experiment(...)", reason="an experiment's name has parts"):
            register_experiment(bad)


def test_the_same_definition_again_replaces_itself():
    source = "@register('a')\ndef factory():\n    return Digits(size={size})\n"
    for size in (1, 2):
        exec(source.format(size=size), {"register": register_experiment, "Digits": Digits, "__name__": "nb"})
    assert get_exp_config("a").size == 2


def test_experiments_are_listed_with_their_first_line():
    register_experiment("b")(second)
    register_experiment("a")(first)
    assert experiments() == {"a": "The first one.", "b": ""}


def test_an_unknown_experiment_names_the_nearest_and_the_remedy():
    register_experiment("digits/mlp")(first)
    with pytest.raises(UsageError) as error:
        get_exp_config("digits/mpl")
    assert error.value.remedy.startswith("did you mean 'digits/mlp'")  # the shipped ones may follow
    assert "--import my.module" in error.value.remedy


def test_an_experiment_returns_a_config():
    register_experiment("a")(lambda: {"a": 1})
    with pytest.raises(UsageError) as error:
        get_exp_config("a")
    assert (error.value.key, error.value.received) == ("experiment 'a'", {"a": 1})
    assert error.value.reason == "must return a config"


def test_installed_packages_are_loaded_once_and_may_be_broken(monkeypatch, caplog):
    def broken() -> object:
        raise ImportError("no module named nothing")

    points = Points(broken=broken, good=lambda: register_experiment("good")(first))
    monkeypatch.setattr(entry_points, "_installed", points)
    with caplog.at_level(logging.WARNING):
        assert get_exp_config("good") == Digits()
        load_entry_points()
    assert [r.getMessage() for r in caplog.records] == [
        "experiments of 'broken' (broken) are skipped: ImportError: no module named nothing"
    ]


def test_configuration_needs_no_backend():
    code = (
        "import sys, everstep.config, everstep.optim\n"
        "print([m for m in ('keras', 'jax', 'tensorflow', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# -- registries of one's own -------------------------------------------------------------------------------------------


def test_a_registry_of_ones_own():
    models = {}

    @register(models, "vision/resnet/50")
    def resnet():
        return 50

    assert register(models, Digits)(resnet) is resnet
    assert lookup(models, "vision/resnet/50")() == 50
    assert lookup(models, Digits) is resnet
    assert lookup(models, "vision/resnet") == {"50": resnet}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a/b", "'a/b' is registered already"),
        ("a/b/c", "'a/b/c' cannot be registered below 'b', which is registered itself"),
        (3, "3 is registered already"),
    ],
)
def test_a_registry_takes_each_key_once(key, message):
    models = {"a": {"b": Digits}, 3: Digits}
    with raises_problem(reason=f"^{message}$"):
        register(models, key)(WideDigits)


@pytest.mark.parametrize("key", ["a/x", "x", "a/bb/c", 4])
def test_a_key_that_is_not_registered(key):
    with raises_problem(reason="nothing is registered under", remedy="has to be imported before"):
        lookup({"a": {"bb": Digits}, 3: Digits}, key)


def test_a_config_class_without_its_decorator_is_refused_when_it_is_registered():
    class Undecorated(Config):
        size: int = 3

    for decorator in (register_task, registry.bind):
        with pytest.raises(UsageError) as refused:
            decorator(Undecorated)
        assert "declares size, but is no dataclass" in refused.value.reason
        assert refused.value.remedy == "write @dataclasses.dataclass above the class"
