"""`everstep config --sharding`, and requests that cannot be carried out: one line, exit 2."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def test_the_table_has_the_bytes_of_each_device(shell: Any) -> None:
    words = ["runtime.mesh={data: 2, model: 4}", "runtime.sharding={dense/kernel: [null, model]}"]
    outcome = shell("config", "mnist/mlp", "--backend=jax", "--sharding", *words)
    assert outcome.code == 0, outcome.err
    rows = {row.split("  ")[0]: row.split() for row in outcome.out.splitlines() if row}
    assert rows["model/dense/kernel"][1:] == ["[784,", "512]", "float32", "[null,", "model]", "401,408"]
    assert rows["optimizer/model/dense/kernel/momentum"][-1] == "401,408"
    assert rows["model/dense_1/kernel"][-2:] == ["replicated", "20,480"]
    assert rows["sum: parameters"][-1] == "423,984"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["runtime.mesh={data: 3}"], "runtime.mesh: received {'data': 3}, has 3 places, but the run has 8 devices"),
        (["runtime.sharding={kernel: [model]}"], "runtime.sharding: received ['model'], 'kernel' names the axis"),
        (
            ["runtime.sharding=fsdp", "task.train_data.global_batch_size=12"],
            "task.train_data.global_batch_size: received 12, must be a multiple of 8",
        ),
        (["runtime.sharding={conv: [data]}"], "matches no variable of the model or the task"),
        (["runtime.sharding={dense/kernel: [data], kernel: []}"], "which 'dense/kernel' matches, too"),
        (["runtime.sharding={dense_1/kernel: [null, data]}"], "'data' has 8 devices, which do not divide 10"),
        (["--backend=tensorflow", "runtime.sharding=fsdp"], "divided over devices on JAX only, and the backend is ten"),
    ],
)
@pytest.mark.full
def test_runs_that_cannot_be(shell: Any, words: list[str], line: str) -> None:
    backend = [] if words[0].startswith("--") else ["--backend=jax"]
    outcome = shell("train", "mnist/mlp", "--model-dir=run", "trainer.train_steps=2", *backend, *words, **EIGHT)
    assert outcome.code == 2
    errors = [text for text in outcome.err.splitlines() if "error: " in text]
    assert len(errors) == 1
    assert line in errors[0]
