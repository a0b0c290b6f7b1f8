"""`bind`: what a config is built with."""

import dataclasses

import pytest

from everstep.config import Config, bind, get_task, register_task
from everstep.testing.problems import raises_problem


def configs():
    """Returns a new config class and one derived from it, which nothing is bound to."""

    @dataclasses.dataclass
    class Base(Config):
        size: int = 1

    @dataclasses.dataclass
    class Derived(Base):
        pass

    return Base, Derived


class Loader:
    def __init__(self, params, name=""):
        self.size, self.name = params.size, name


def load(params, **kwargs):
    return f"loaded {params.size}"


def other(params):
    return None


@pytest.mark.parametrize("builder", [Loader, load])
def test_a_class_or_a_function_is_called_with_the_config(builder):
    base, derived = configs()
    assert bind(base)(builder) is builder
    for config in (base(size=3), derived(size=3)):
        built = config.BUILDER(config, name="mine")
        assert built == "loaded 3" if builder is load else (built.size, built.name) == (3, "mine")
    assert base(size=3).as_dict() == {"size": 3}
    with raises_problem(key="BUILDER"):
        base({"BUILDER": 3})


def test_a_second_one_is_refused_and_so_is_the_same_again():
    base, derived = configs()
    bind(base)(Loader)
    with raises_problem(reason="Loader is bound to .*Base twice", remedy="bind it once"):
        bind(base)(Loader)
    with raises_problem(reason=r"a builder for .*Base is registered already, by .*Loader"):
        bind(base)(other)
    bind(derived)(other)
    assert derived().BUILDER is other
    with raises_problem(key="@bind(...)", received=3, reason="expected a config class"):
        bind(3)


def test_a_definition_that_is_run_again_replaces_itself():
    base, _ = configs()
    for size in (1, 2):  # as a cell of a notebook that is run twice

        def twice(params, size=size):
            return size

        bind(base)(twice)
    assert base().BUILDER(base()) == 2


def test_a_task_is_taken_from_the_builder_first():
    base, derived = configs()
    register_task(base)(other)
    assert get_task(base()) is None
    bind(base)(load)
    assert get_task(derived(size=2)) == "loaded 2"
    register_task(derived)(other)
    assert get_task(derived()) is None
