"""Run directories to report on, written by the code that writes real ones."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from everstep.evaluation import AbsoluteError, Accuracy, CrossEntropy, Evaluator, IoUScore, SampleBatch
from everstep.run.record import Run

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


def resumed_run(path: Path, steps: int = 40, lag: float = 0.0, config: str = "trainer:\n  seed: 1\n") -> Path:
    """Writes a run that was killed halfway and resumed."""
    times = iter(START + datetime.timedelta(seconds=10 * i) for i in range(99))
    run = Run.open(path, "mnist/mlp", "jax", clock=lambda: next(times))
    run.begin(0, config, code={"commit": "abc"})
    run.mark_first_step()
    run.update(steps // 2, 0)
    run.begin(steps // 2 - 4, config, code={"commit": "abc"}, beat=(steps // 2, START.timestamp() + 60))
    run.mark_first_step()
    lines = ["step,training_loss,accuracy,learning_rate,validation_loss,validation_accuracy,score"]
    for step in range(2, steps + 1, 2):
        loss = 1 / (1 + step / 8) + lag
        checked = f"{loss + 0.1!r},{1 - loss!r},{step / 2!r}" if step % 10 == 0 else ",,"
        lines.append(f"{step},{loss!r},{0.9 - loss!r},0.01,{checked}")
    (path / "history.csv").write_text("\n".join(lines) + "\n12,0.3")  # the last line is torn
    train = {"training_loss": 0.2, "accuracy": 0.7, "learning_rate": 0.01}
    run.update(steps, 1, {"train": train, "validation": {"validation_loss": 0.3, "accuracy": 0.8, "score": 20.0}})
    run.record["cost"] = {"parameters": 1_318_922, "trainable_parameters": 1_318_922, "samples_per_second": 81234.5}
    run.finish("finished", "done")
    return path


def exported_run(path: Path, epochs: int = 4, best: int = 3) -> Path:
    """Writes a run that logs at the end of each epoch of 5 steps, and has exported one of them."""
    run = Run.open(path, "mnist", "jax", clock=lambda: START)
    run.begin(0, "epochs: 4\n", code={"commit": None, "sources": "5" * 64})
    lines = ["step,training_loss,validation_loss"]
    lines += [f"{5 * epoch},{1 / epoch!r},{abs(epoch - best) / 8 + 0.5!r}" for epoch in range(1, epochs + 1)]
    (path / "history.csv").write_text("\n".join(lines) + "\n")
    run.update(5 * epochs, epochs, {"train": {"training_loss": 0.2}})
    run.finish("finished", "done")
    facts = {"metric": "val_loss", "mode": "min", "val_loss": 0.5, "epoch": best - 1.0, "code": run.record["code"]}
    (path / "exported").mkdir()
    (path / "exported" / "export.json").write_text(json.dumps({**facts, "best_ckpt_global_step": 5 * best}))
    return path


def classification_run(
    path: Path,
    rows: int = 200,
    seed: int = 0,
    split: str = "test",
    classes: tuple[str, ...] = ("ant", "bee", "cat"),
    ids: list[str] | None = None,
    texts: list[str] | None = None,
    sharp: float = 2.0,
    columns: dict[str, Any] | None = None,
) -> Path:
    """Writes an evaluation of classes with pictures (or texts); only the predictions depend on the seed."""
    data = np.random.default_rng(0)
    labels = data.integers(0, len(classes), rows)
    images = data.integers(0, 90, (rows, 12, 12)) + 50 * labels[:, None, None]
    cameras = [["left", "right", "top"][i] for i in data.integers(0, 3, rows)]
    scores = np.random.default_rng(seed + 1).normal(size=(rows, len(classes))) + sharp * np.eye(len(classes))[labels]
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    names = ids or [f"image_{row}.png" for row in range(rows)]
    brightness = images.mean((1, 2))
    facts = columns if columns is not None else {"camera": cameras, "brightness": brightness.tolist()}
    batch = SampleBatch(names, labels, shares, images.astype("uint8") if texts is None else texts, facts)
    evaluator = Evaluator([CrossEntropy(), Accuracy()], classes=list(classes), kind="classification")
    evaluator.run([batch], path / "reports", split, overall={"loss": 0.5})
    return path


def regression_run(path: Path, rows: int = 150) -> Path:
    """Writes an evaluation of a regression; one prediction is NaN."""
    random = np.random.default_rng(2)
    x = random.normal(size=(rows, 4))
    labels = x.sum(axis=1)
    answers = labels + random.normal(size=rows) * 0.3
    answers[7] = np.nan
    batch = SampleBatch(None, labels, answers, x, {"first": x[:, 0].tolist()})
    Evaluator([AbsoluteError()], kind="regression").run([batch], path / "reports", "test")
    return path


def segmentation_run(path: Path, rows: int = 30) -> Path:
    """Writes an evaluation of masks: discs, predicted slightly off their positions."""
    random = np.random.default_rng(3)
    centre = random.uniform(8, 24, (rows, 2, 1, 1))
    grid = np.mgrid[0:32, 0:32][None]
    masks = (((grid - centre) ** 2).sum(axis=1) < 36).astype(np.float32)[..., None]
    found = (((grid - centre - random.normal(size=centre.shape) * 2) ** 2).sum(axis=1) < 40).astype(np.float32)[
        ..., None
    ]
    images = np.clip(masks + random.normal(size=masks.shape) * 0.2, 0, 1)
    batch = SampleBatch(None, masks, found, images)
    Evaluator([IoUScore()], kind="segmentation").run([batch], path / "reports", "validation")
    return path
