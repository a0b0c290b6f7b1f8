"""`instantiate`: Hydra's spelling, the allowlist's names."""

import collections
import functools

import hydra.utils
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.config import Config
from everstep.config.instantiation import instantiate
from everstep.errors import UsageError

NET = "my_project.models.Net"


def refused(tree, **kwargs) -> str:
    with pytest.raises(UsageError) as caught:
        instantiate(tree, **kwargs)
    return str(caught.value)


def shape(value):
    """What was built, as something that can be compared."""
    if type(value).__name__ == "Net":
        return ("Net", *map(shape, (value.units, value.inner, value.more, value.options)))
    if isinstance(value, functools.partial):
        return ("partial", value.func.__qualname__, shape(value.args), shape(value.keywords))
    if isinstance(value, collections.abc.Mapping):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_builds_what_a_tree_describes(project):
    net = instantiate({"_target_": NET, "units": 3, "inner": {"_target_": NET, "units": 4}})
    assert shape(net) == ("Net", 3, ("Net", 4, None, [], {}), [], {})


@pytest.mark.parametrize(
    "tree",
    [
        {"_target_": NET},
        {"_target_": NET, "_args_": [1, {"_target_": NET}, 3], "option": [1, {"a": {"_target_": NET}}]},
        {"_target_": NET, "_partial_": True, "inner": {"_target_": NET, "_partial_": True}},
        {"_target_": NET, "_recursive_": False, "inner": {"_target_": NET}},
        {"_target_": NET, "_convert_": "all", "inner": {"plain": [{"deep": 1}]}},
        {"one": {"_target_": NET, "units": 1}, "many": [{"_target_": NET, "units": 2}], "none": None},
        {"_target_": "my_project.models.double", "value": {"_target_": "my_project.models.double", "value": 2}},
        {"_target_": "my_project.models.Net.wide", "units": 7},
        {"plain": {"a": [1, 2.5, "x", True, None]}},
    ],
)
def test_it_builds_what_hydra_builds(project, tree):
    assert shape(instantiate(tree)) == shape(hydra.utils.instantiate(tree, _convert_="all"))


def test_arguments_of_the_call_win_and_stay_as_they_are(project):
    given = {"_target_": "os.system", "command": "true"}  # from Python, not from a file: an ordinary dict
    net = instantiate({"_target_": NET, "units": 3, "inner": {"_target_": NET}}, inner=given, extra=7)
    assert net.inner is given
    assert (net.units, net.options) == (3, {"extra": 7})


def test_python_may_give_the_callable_itself():
    assert instantiate({"_target_": dict, "a": {"_target_": len, "_args_": ["abc"]}}) == {"a": 3}


def test_builds_from_a_config(project):
    config = Config({"units": 5, "rates": (1, 2)})
    assert instantiate(config) == {"units": 5, "rates": (1, 2)}


def test_builds_keras_models():
    model = instantiate(
        {
            "_target_": "keras.Sequential",
            "layers": [
                {"_target_": "keras.layers.InputLayer", "shape": [4]},
                {
                    "_target_": "keras.layers.Dense",
                    "units": 2,
                    "activation": "relu",
                    "kernel_initializer": {"_target_": "keras.initializers.HeNormal", "seed": 1},
                },
            ],
        }
    )
    assert model.count_params() == 10


def test_every_name_is_checked_before_anything_is_built(project):
    text = refused(
        {
            "_target_": "my_project.models.refuse",
            "a": {"_target_": "os.system", "command": "true"},
            "b": [{"_target_": "my_project.run_anything"}, {"_target_": "my_project.models.Nett"}],
            "_args_": [{"_target_": 3}],
        }
    )
    lines = text.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "a._target_", "b[0]._target_", "b[1]._target_", "_args_[0]._target_",
    ]  # fmt: skip
    assert "did you mean 'Net'" in lines[2]
    assert "received 3" in lines[3]


def test_a_name_below_a_description_that_is_not_recursive_is_checked_too(project):
    tree = {"_target_": NET, "_recursive_": False, "inner": {"_target_": "os.system"}}
    assert "inner._target_: 'os.system' is refused" in refused(tree)


def test_keys_with_dots_are_no_paths(project):
    tree = {"a.b": {"_target_": NET}, "a": {"b": {"_target_": "my_project.models.double", "value": 1}}}
    built = instantiate(tree)
    assert (shape(built["a.b"])[0], built["a"]["b"]) == ("Net", 2)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"_target_": NET, "_args_": "abc"}, "received 'abc', _args_ must be a list of arguments"),
        ({"_target_": NET, "_partial_": "yes"}, "received 'yes', _partial_ must be true or false"),
        ({"_target_": NET, "_recursive_": 0}, "received 0, _recursive_ must be true or false"),
        ({"_target_": NET, 3: 4}, "received 3, the names of arguments must be text"),
        ({"_target_": None}, "received None"),
        ({"_target_": "my_project.models.strict_units"}, "an object of the class builtins.int"),
        ({"_target_": "my_project.models.double", "vlaue": 1}, "double cannot be built: double() got an unexpected"),
        ({"inner": {"_target_": "my_project.models.refuse"}}, "inner: refuse cannot be built: never"),
        ([{"_target_": NET}], "expected a mapping with a _target_"),
        ("my_project.models.Net", "expected a mapping with a _target_"),
    ],
)
def test_wrong_trees(project, tree, reason):
    assert reason in refused(tree)


def test_further_arguments_need_a_target(project):
    assert "arguments ['units'] without a _target_" in refused({"a": 1}, units=3)


@pytest.mark.parametrize("target", [NET, "keras.layers.Dense"])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: {"x": {"y": one}}])
def test_kerass_own_descriptions_are_refused(project, target, wrap):
    smuggled = {"class_name": "StringLookup", "module": "keras.layers", "config": {"vocabulary": "/etc/passwd"}}
    assert "class_name" in refused({"_target_": target, "units": 1, "activation": wrap(smuggled)})


def keep(**values):
    return values


@given(st.text(alphabet="${}\\?:._abc '\"\n") | st.text())
def test_text_is_text(text):
    assert instantiate({"_target_": keep, "value": text, "more": [{"a": text}]}) == {
        "value": text,
        "more": [{"a": text}],
    }
