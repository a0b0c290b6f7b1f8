"""Gin bindings: which configs and configurables they set, and which are refused."""

import dataclasses
import sys

import gin
import pytest

from everstep.config import Config, OneOfConfig, apply_layers
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.model_garden.gin import bindings as gin_bindings

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class GinLeaf(Config):
    size: int = 1
    tags: list = []


@dataclasses.dataclass
class GinBigLeaf(GinLeaf):
    depth: int = 1


@dataclasses.dataclass
class GinChoice(OneOfConfig):
    type: str | None = "big"
    big: GinBigLeaf = GinBigLeaf()
    small: GinLeaf = GinLeaf()


@dataclasses.dataclass
class GinTree(Config):
    left: GinLeaf = GinLeaf()
    right: GinBigLeaf = GinBigLeaf()
    many: list[GinLeaf] = [GinLeaf(), GinLeaf()]
    choice: GinChoice = GinChoice()
    name: str = "tree"


@dataclasses.dataclass
class GinElsewhere(Config):
    size: int = 1


def composed(config, *params, files=()):
    return apply_layers(config, gin_bindings.read(files, params).layers(config))


def refused(act, *args, **kwargs) -> str:
    with pytest.raises(UsageError) as caught:
        act(*args, **kwargs)
    return str(caught.value)


# ---- fields of configs -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "selector",
    ["TrainerConfig", "config.TrainerConfig", "loop.config.TrainerConfig", "everstep.loop.config.TrainerConfig",
     "everstep.TrainerConfig"],
)  # fmt: skip
def test_a_class_is_named_by_the_end_of_its_name(selector):
    config = composed(ExperimentConfig(), f"{selector}.train_steps = 7")
    assert config.trainer.train_steps == 7


def test_a_field_is_set_wherever_the_class_is():
    config = composed(GinTree(), "GinLeaf.size = 5")
    assert (config.left.size, config.right.size, [leaf.size for leaf in config.many]) == (5, 5, [5, 5])
    assert (config.choice.big.size, config.choice.small.size) == (5, 5)


def test_a_subclass_is_not_its_base():
    config = composed(GinTree(), "GinBigLeaf.size = 5")
    assert (config.left.size, config.right.size, config.many[0].size) == (1, 5, 1)


def test_a_field_of_a_subclass_is_set_where_it_is():
    assert composed(GinTree(), "GinLeaf.depth = 4").right.depth == 4


@pytest.mark.parametrize(
    ("scope", "sizes"),
    [("left", (9, 1, 1, 1)), ("many", (1, 9, 9, 1)), ("choice", (1, 1, 1, 9)), ("choice/big", (1, 1, 1, 9))],
)
def test_a_scope_names_the_place(scope, sizes):
    config = composed(GinTree(), f"{scope}/GinLeaf.size = 9")
    assert (config.left.size, config.many[0].size, config.many[1].size, config.choice.big.size) == sizes


def test_a_longer_scope_wins_over_later_bindings():
    params = ["choice/big/GinLeaf.size = 3", "choice/GinLeaf.size = 2", "GinLeaf.size = 1"]
    config = composed(GinTree(), *params)
    assert (config.choice.big.size, config.choice.small.size, config.left.size) == (3, 2, 1)


def test_later_wins(project):
    (project / "a.gin").write_text("GinTree.name = 'a'\nGinLeaf.size = 1\nGinLeaf.size = 2\n")
    (project / "b.gin").write_text("GinTree.name = 'b'\n")
    assert composed(GinTree(), files=["a.gin", "b.gin"]).name == "b"
    assert composed(GinTree(), "GinTree.name = 'c'", files=["a.gin", "b.gin"]).name == "c"
    assert composed(GinTree(), files=["a.gin"]).left.size == 2


def test_layers_know_where_they_come_from(project):
    (project / "in").mkdir()
    (project / "in/b.gin").write_text("\n\nGinBigLeaf:\n  # a block\n  depth = 2\n  size = 3\n")
    (project / "a.gin").write_text("include 'in/b.gin'\nGinTree.name = 'a'\n")
    layers = gin_bindings.read(["a.gin"], ["left/GinLeaf.size = 4"]).layers(GinTree())
    assert [(layer.origin, layer.tree) for layer in layers] == [
        ("in/b.gin:5", {"right": {"depth": 2}, "choice": {"big": {"depth": 2}}}),
        ("in/b.gin:6", {"right": {"size": 3}, "choice": {"big": {"size": 3}}}),
        ("a.gin:2", {"name": "a"}),
        ("--gin-params 'left/GinLeaf.size = 4'", {"left": {"size": 4}}),
    ]


def test_a_value_of_a_wrong_type_is_refused_with_its_place(project):
    (project / "a.gin").write_text("\nGinTree.name = 3\n")
    text = refused(composed, GinTree(), files=["a.gin"])
    assert text == "name: received 3, expected str (from a.gin:2)"


def test_macros(project):
    (project / "a.gin").write_text("GinLeaf.tags = [%one, {'x': %deep/two}]\none = 1\n")
    config = composed(GinTree(), "one = %three", "deep/two = 2", "three/macro.value = 3", files=["a.gin"])
    assert config.left.tags == [3, {"x": 2}]
    config.left.tags.append(4)
    assert config.right.tags == [3, {"x": 2}]


@pytest.mark.parametrize(
    ("param", "reason"),
    [
        ("TrainerConfig.train_stesp = 5", "trainer.train_stesp: received 5, unknown key: did you mean 'train_steps'"),
        ("trian_data/DataConfig.seed = 1", "no DataConfig is at 'trian_data': did you mean 'task/train_data'"),
        ("GinElsewhere.size = 1", "this experiment has no GinElsewhere"),
        ("TrainerConfig.train_steps = @area()", "received @area(), a config holds plain values"),
        ("TrainerConfig.train_steps = [{'a': @area}]", "received @area, a config holds plain values"),
        ("TrainerConfig.train_steps = %stepps\nsteps = 3", "there is no macro %stepps: did you mean 'steps'"),
        ("TrainerConfig.train_steps = %a\na = [%b]\nb = %a", "the macro %a refers to itself"),
    ],
)
def test_wrong_bindings_of_fields(param, reason):
    text = refused(composed, ExperimentConfig(), param)
    assert reason in text
    assert f"(from --gin-params {param!r})" in text


def test_all_problems_are_reported_at_once():
    text = refused(composed, ExperimentConfig(), "TrainerConfig.a_a_a = 1", "DataConfig.b_b_b = 2")
    assert [line.partition(":")[0] for line in text.splitlines()] == ["trainer.a_a_a", "task.train_data.b_b_b"]


def test_one_name_for_two_classes_is_refused():
    mine = GinLeaf
    theirs = dataclasses.make_dataclass("GinLeaf", [("size", int, 1)], bases=(Config,))

    @dataclasses.dataclass
    class Both(Config):
        one: mine = mine()
        two: theirs = theirs()

    assert "write more of its name" in refused(composed, Both(), "GinLeaf.size = 2")
    assert composed(Both(), "test_gin.GinLeaf.size = 2").one.size == 2


@pytest.mark.parametrize(
    ("params", "backend"),
    [
        ([], None),
        (["TrainerConfig.train_steps = 1"], None),
        (["RuntimeConfig.backend = 'jax'"], "jax"),
        (["everstep.RuntimeConfig.backend = %b", "b = 'jax'"], "jax"),
        (["runtime/RuntimeConfig.backend = 'jax'", "RuntimeConfig.backend = 'torch'"], "jax"),
        (["RuntimeConfig.backend = 'jax'", "RuntimeConfig.backend = None"], None),
        (["RuntimeConfig.backend = 3"], None),
        (["MyRuntimeConfig.backend = 'jax'", "RuntimeConfig.backends = 'jax'"], None),
        (["from __gin__ import dynamic_registration\nimport everstep as es\nes.RuntimeConfig.backend = 'jax'"], "jax"),
    ],
)
def test_the_backend_is_known_without_a_config(params, backend):
    assert gin_bindings.read([], params).backend() == backend


# ---- configurables ---------------------------------------------------------------------------------------------------
def area():
    return sys.modules["my_project.gin_parts"].area


def test_other_bindings_reach_gin(project):
    (project / "a.gin").write_text("import my_project.gin_parts\narea.width = 2\narea.height = %h\nh = 5\n")
    bindings = gin_bindings.read(["a.gin"], ["area.width = 3", "GinLeaf.size = 2"])
    assert "my_project.gin_parts" not in sys.modules
    bindings.apply()
    assert area()() == 15
    assert area()(height=1) == 3
    assert "area.width = 3" in gin_bindings.operative_config()
    gin_bindings.clear()
    assert area()() == 1


def test_a_configurable_may_share_its_name_with_a_config_class(project):
    @gin.configurable(module="somewhere.else")
    class GinElsewhere:
        def __init__(self, size=1):
            self.size = size

    bindings = gin_bindings.read([], ["GinElsewhere.size = 8"])
    assert bindings.layers(GinTree()) == []
    bindings.apply()
    assert GinElsewhere().size == 8


def test_a_config_class_that_is_a_configurable_stays_a_config(project):
    gin.external_configurable(GinElsewhere, module="everywhere")

    @dataclasses.dataclass
    class Holder(Config):
        held: GinElsewhere = GinElsewhere()

    assert composed(Holder(), "GinElsewhere.size = 2").held.size == 2


def test_references_are_for_configurables(project):
    gin_bindings.read([], ["import my_project.gin_parts\nBox.made_by = @wide/area()\nwide/area.width = 6"]).apply()
    assert sys.modules["my_project.gin_parts"].Box().made_by == 6


def test_apply_works_where_gin_is_locked(project):
    bindings = gin_bindings.read([], ["import my_project.gin_parts\narea.width = 4"])
    bindings.import_modules()
    gin.finalize()
    bindings.apply()
    assert area()() == 4
    assert gin.config_is_locked()


@pytest.mark.parametrize(
    ("param", "reason"),
    [
        ("areaa.width = 1", "No configurable matching 'areaa': did you mean 'area'"),
        ("GinLeef.size = 1", "No configurable matching 'GinLeef': did you mean 'GinLeaf'"),
        ("Box.made_by = @sc/areaa()", "No configurable matching reference '@areaa()': did you mean 'area'"),
        ("area.widht = 1", "doesn't have a parameter named 'widht': did you mean 'width'"),
        ("Box.depht = 1", "doesn't have a parameter named 'depht': did you mean 'depth'"),
        ("area.width = %wide", "there is no macro %wide"),
        ("area.width = %gin.REQUIRED", "area.width set to `%gin.REQUIRED`"),
    ],
)
def test_wrong_bindings_of_configurables(project, param, reason):
    text = refused(gin_bindings.read([], ["import my_project.gin_parts", param]).apply)
    assert reason in text
    assert f"(from --gin-params {param!r})" in text or "REQUIRED" in param


DYNAMIC = "from __gin__ import dynamic_registration\nimport my_project.gin_parts as parts\nimport my_project\n"


def test_dynamic_registration_of_what_is_allowed(project):
    param = f"{DYNAMIC}parts.unregistered.size = 9\nparts.Box.made_by = @parts.unregistered()"
    gin_bindings.read([], [param, "unregistered.size = 10"]).apply()
    assert sys.modules["my_project.gin_parts"].Box().made_by == 10


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("my_project.os.system.command = 'true'", "leads through the module 'os'"),
        ("my_project.run_anything.args = 'true'", "it is subprocess.run"),
        ("parts.Box.made_by = @my_project.shutil.rmtree", "leads through the module 'shutil'"),
        ("parts.Box.made_by = [{'x': @scope/my_project.run_anything()}]", "it is subprocess.run"),
        ("m = @my_project.run_anything()", "it is subprocess.run"),
        ("os.system.command = 'true'", "'os' is not imported in this file"),
        ("gin.config.open.file = 'x'", "'gin' is not imported in this file"),
    ],
)
def test_dynamic_registration_of_anything_else(project, line, reason):
    assert reason in refused(gin_bindings.read([], [DYNAMIC + line]).apply)
