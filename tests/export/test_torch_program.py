import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.children import forked

from everstep.errors import UsageError
from everstep.export.model_export import export_all
from everstep.export.torch_program import export_torch_program
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.gpu]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype("float32")
LOAD_WITHOUT_KERAS = """
import sys
sys.modules.update(dict.fromkeys(["keras", "everstep", "tensorflow", "jax"]))
import numpy, torch
file = numpy.load(sys.argv[2])
answer = torch.export.load(sys.argv[1]).module()({name: torch.tensor(file[name]) for name in ("a", "b")})
numpy.savez(sys.argv[3], **{name: value.numpy() for name, value in answer.items()})
"""


@pytest.fixture
def torch():
    if keras.backend.backend() != "torch":
        pytest.skip("PyTorch programs need the PyTorch backend")
    return pytest.importorskip("torch")


def dense(*layers, inputs=None):
    return keras.Sequential([keras.Input((8,)) if inputs is None else inputs, *layers, keras.layers.Dense(3)])


def two_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((2,), dtype="int32", name="b")
    x, y = keras.layers.Dense(5)(a), keras.layers.Flatten()(keras.layers.Embedding(10, 3)(b))
    return keras.Model({"a": a, "b": b}, {"x": x, "y": keras.layers.Concatenate()([x, y])})


def loaded(torch, path, *inputs):
    with torch.no_grad():
        outputs = torch.export.load(str(path)).module()(*map(torch.tensor, inputs))
    return keras.tree.map_structure(lambda output: output.numpy(), outputs)


def expected(model, inputs):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, model(inputs, training=False))


def test_loading_a_program_needs_only_pytorch(torch, tmp_path):
    """Exported with three samples, called with one; integers have NumPy's type."""
    model = two_inputs()
    sample = {"a": RNG.normal(size=(3, 4)).astype("float32"), "b": np.ones((3, 2), np.int64)}
    export_torch_program(model, tmp_path / "new" / "two.pt2", sample)
    one = {"a": sample["a"][:1], "b": np.array([[7, 2]], "int32")}
    np.savez(tmp_path / "one.npz", **one)
    files = [tmp_path / "new" / "two.pt2", tmp_path / "one.npz", tmp_path / "answer.npz"]
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_KERAS, *files], check=True)
    answer = np.load(tmp_path / "answer.npz")
    assert sorted(answer) == ["x", "y"]
    for name, value in expected(model, one).items():
        np.testing.assert_allclose(answer[name], value, rtol=1e-5, atol=1e-6)


def test_a_program_contains_each_variable_once_and_no_optimizer(torch, tmp_path):
    model = dense(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(X, X[:, :3])
    for _ in range(2):  # the second export replaces the first
        export_torch_program(model, tmp_path / "model.pt2", X)
    program = torch.export.load(str(tmp_path / "model.pt2"))
    assert list(program.state_dict) == [v.path for v in model.variables]
    assert not program.constants
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_a_batch_of_one_and_a_length_left_open(torch, tmp_path):
    model = dense(keras.layers.GlobalAveragePooling1D(), inputs=keras.Input((None, 4)))
    export_torch_program(model, tmp_path / "model.pt2", RNG.normal(size=(1, 6, 4)).astype("float32"))
    other = RNG.normal(size=(5, 9, 4)).astype("float32")
    np.testing.assert_allclose(loaded(torch, tmp_path / "model.pt2", other), expected(model, other), rtol=1e-5)


def test_a_dimension_fixed_by_a_loop_is_a_warning(torch, tmp_path, caplog):
    model = dense(keras.layers.GRU(2), inputs=keras.Input((None, 4)))
    export_torch_program(model, tmp_path / "model.pt2", np.ones((3, 2, 4), "float32"))
    assert "takes only inputs of shape [None, 2, 4]" in caplog.text


def test_the_model_is_unchanged(torch, tmp_path):
    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.noise = keras.layers.GaussianNoise(1.0, seed=1)
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
            self.dense = keras.layers.Dense(3)

        def call(self, x, training=False):
            self.calls.assign(self.calls + 1)
            return self.dense(self.noise(x, training=training)), x

    model = Counting()
    model(X)
    before = [keras.ops.convert_to_numpy(v.value).copy() for v in model.variables]
    export_torch_program(model, tmp_path / "model.pt2", X)
    assert len(loaded(torch, tmp_path / "model.pt2", X)) == 2
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable.value), value)


def test_half_precision(torch, tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, dtype="mixed_bfloat16")])
    export_torch_program(model, tmp_path / "model.pt2", X)


@keras.saving.register_keras_serializable("torch_program")
class Unexportable(keras.layers.Layer):
    def __init__(self, obstacle, **kwargs):
        super().__init__(**kwargs)
        self.obstacle = obstacle

    def get_config(self):
        return {**super().get_config(), "obstacle": self.obstacle}

    def call(self, x):
        if self.obstacle == "decides":
            return x if keras.ops.sum(x) > 0 else -x
        if self.obstacle == "counts":
            return keras.ops.reshape(x, (4, 2, 4))
        return keras.ops.convert_to_tensor(keras.ops.convert_to_numpy(x))

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("decides", "branches in Python on the value of a tensor: use keras.ops.where"),
        ("counts", "works for one batch size only"),
        ("converts", r"numpy\(\) is not supported"),
    ],
)
def test_a_model_that_cannot_be_exported_is_reported_and_has_its_keras_file(torch, tmp_path, caplog, obstacle, message):
    model = keras.Sequential([keras.Input((8,)), Unexportable(obstacle)], name="odd")
    with raises_problem(key="model", received="odd", reason=f"PyTorch cannot export it: .*{message}"):
        export_torch_program(model, tmp_path / "model.pt2", X)
    with caplog.at_level(logging.WARNING, "everstep"):
        assert export_all(model, tmp_path, X) == [tmp_path / "model.keras"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    assert "not exported as model.pt2: model: received 'odd', PyTorch cannot export it" in caplog.text
    assert "\n" not in caplog.messages[-1]


def test_export_all_writes_both_formats(torch, tmp_path):
    assert export_all(dense(), tmp_path, X) == [tmp_path / "model.keras", tmp_path / "model.pt2"]


def test_the_example_of_the_documentation_runs(torch, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
    code, printed = re.search(
        r"```python torch\n(.*?)```\s+```text output\n(.*?)```", page.read_text(), re.DOTALL
    ).groups()
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    export_all(model, Path("runs/program/export"), np.zeros((2, 28, 28, 1), "float32"))
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out == printed


def test_other_backends_are_refused(tmp_path):
    if keras.backend.backend() == "torch":
        pytest.skip("this is for the other backends")
    with pytest.raises(UsageError) as error:
        export_torch_program(dense(), tmp_path / "model.pt2", X)
    assert (error.value.key, error.value.received) == ("backend", keras.backend.backend())
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import gc, resource, signal, sys
import keras, numpy as np
from everstep.export import export_torch_program

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    export_torch_program(model, sys.argv[1], np.ones((2, 4), "float32"))
except Exception as error:
    print(type(error).__name__)
gc.collect()
print("still running")
"""


@pytest.mark.full
def test_a_full_disk_is_an_error_and_does_not_end_the_process(torch, tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "model.pt2")]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = forked.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["OSError", "still running"], done.stderr
    assert list(tmp_path.iterdir()) == []
