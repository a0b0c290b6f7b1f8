"""Operations that PyTorch cannot repeat bit for bit: `Tensor.put_` is one on a CPU, too."""

import warnings

import keras
import numpy as np
import pytest

import everstep
from everstep.engine import exactness
from everstep.errors import UsageError
from everstep.run.record import read

if keras.backend.backend() != "torch":
    pytest.skip("on PyTorch alone operations tell whether they are deterministic", allow_module_level=True)

import torch

pytestmark = [
    pytest.mark.backend,
    pytest.mark.daily("torch"),
    pytest.mark.filterwarnings("ignore:put_ does not have a deterministic implementation"),
]


@pytest.fixture(autouse=True)
def as_in_a_new_process():
    """Other tests of this process may have prepared it for deterministic operations."""
    enabled, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=only_warns)


X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


class Put(keras.layers.Layer):
    def call(self, x):
        return x + torch.zeros(4).put_(torch.arange(2), torch.ones(2))


def record_of_fit(directory, *layers, **options):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    everstep.fit(model, X, X[:, :1], epochs=1, model_dir=directory, verbose=0, seed=0, export=[], **options)
    return read(directory)


def test_an_operation_without_a_deterministic_form_is_told_and_recorded(tmp_path, caplog):
    found = record_of_fit(tmp_path, Put())
    assert found["status"] == "finished"
    assert found["exactness"] == {
        "level": exactness.NONE,
        "reason": "PyTorch has no deterministic form of put_",
    }
    assert caplog.text.count("may end with other bits: PyTorch has no deterministic form of put_") == 1


class Noting(keras.layers.Layer):
    """Notes whether operations without a deterministic form were only warned of, in which steps."""

    def call(self, x, training=False):
        self.noted.append((bool(training), torch.is_deterministic_algorithms_warn_only_enabled()))
        return x


@pytest.mark.parametrize("option", [None, True])
@pytest.mark.parametrize("racing", [False, True])
def test_training_steps_take_the_forms_that_pytorch_leaves_out_where_it_only_warns(tmp_path, option, racing):
    """The gradient of attention on a GPU is exact only where PyTorch would refuse what cannot be."""
    if option and racing:
        pytest.skip("refused")
    layer = Noting()
    layer.noted = []
    record_of_fit(tmp_path, layer, *([Put()] if racing else []), deterministic=option, validation_split=0.5)
    trained = [only_warns for training, only_warns in layer.noted if training]
    assert trained[-1] is racing
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_warning_of_attention_is_not_shown_where_its_exact_form_is_taken(tmp_path, recwarn):
    class Warning(keras.layers.Layer):
        def call(self, x):
            if torch.is_deterministic_algorithms_warn_only_enabled():
                warnings.warn("Flash Attention defaults to a non-deterministic algorithm. To …", stacklevel=2)
            return x

    assert "exactness" not in record_of_fit(tmp_path, Warning())
    assert not [one for one in recwarn if "Attention" in str(one.message)]


def test_it_is_refused_by_the_name_of_the_argument_where_exact_steps_are_required(tmp_path):
    with pytest.raises(UsageError) as caught:
        record_of_fit(tmp_path / "run", Put(), deterministic=True)
    [problem] = caught.value.problems
    assert (problem.key, problem.received) == ("deterministic", True)
    assert problem.reason.endswith("PyTorch has no deterministic form of put_")
    assert problem.remedy == "leave it out, or use another operation"
    assert not torch.are_deterministic_algorithms_enabled()


def test_where_it_is_not_requested_nothing_is_said(tmp_path, caplog):
    assert "exactness" not in record_of_fit(tmp_path / "off", Put(), deterministic=False)
    assert "exactness" not in record_of_fit(tmp_path / "plain", deterministic=True)
    assert "no deterministic form" not in caplog.text


def test_nor_where_the_program_asks_for_deterministic_operations_itself(tmp_path, caplog):
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert "exactness" not in record_of_fit(tmp_path, Put(), deterministic=False)
    assert "no deterministic form" not in caplog.text


def test_other_warnings_of_a_step_are_shown(tmp_path):
    class Warning(keras.layers.Layer):
        def call(self, x):
            torch.zeros(2).put_(torch.arange(2), torch.ones(2))
            warnings.warn("look at me", stacklevel=2)
            return x

    with pytest.warns(UserWarning, match="look at me"):
        record_of_fit(tmp_path, Warning())
