"""Digits that grow: three stages of larger images and more dropout, against training on full size all the time.

    python examples/progressive.py [--steps 1500] [--backend jax]

The model pools over images of any size, so all its weights carry over from stage to stage. The cost of a step is
proportional to the pixels of the images, so the same number of steps costs 72 %. A third run at full size, stopped when
it has computed as much, shows whether the early, cheap steps are worth it. All runs can be killed and resumed.
"""

import argparse
import tempfile
import time

from everstep.engine import backend

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=1500, help="of the whole run (default 1500)")
parser.add_argument("--backend", choices=["tensorflow", "jax"], help="which backend computes")
parser.add_argument("--model-dir", help="keep the runs here (default: a temporary folder)")
given = parser.parse_args()
backend.select(given.backend)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

import everstep as es  # noqa: E402
from everstep.loop.config import ProgressiveTrainerConfig  # noqa: E402
from everstep.recipes.mnist_data import load_mnist  # noqa: E402
from everstep.task.classification import ClassificationTask  # noqa: E402

SIZES, DROPOUT = (20, 24, 28), (0.0, 0.05, 0.1)
STEPS = [given.steps * part // 10 for part in (4, 3, 3)]  # of the stages


class Digits(ClassificationTask):
    """Full-size images from the first step on."""

    def build_model(self, dropout: float = DROPOUT[-1]) -> keras.Model:
        """Returns a network for images of any size."""
        stack = [layers.Conv2D(16, 5, padding="same", activation="relu"), layers.MaxPooling2D()]
        stack += [layers.Conv2D(32, 5, padding="same", activation="relu"), layers.MaxPooling2D()]
        stack += [layers.Conv2D(64, 3, padding="same", activation="relu"), layers.GlobalMaxPooling2D()]
        return keras.Sequential([keras.Input((None, None, 1)), *stack, layers.Dropout(dropout), layers.Dense(10)])

    def build_inputs(self, params, input_context=None):
        """Returns the shipped images, 28 by 28."""
        return digits(params.is_training, SIZES[-1])


class GrowingDigits(es.ProgressivePolicy, Digits):
    """Small images first, without dropout; evaluated at full size all the time."""

    def num_stages(self) -> int:
        """Returns one stage per size."""
        return len(SIZES)

    def num_steps(self, stage: int) -> int:
        """Returns the most for the smallest images."""
        return STEPS[stage]

    def get_model(self, stage, old_model=None):
        """Returns the same network with more dropout."""
        return self.build_model(DROPOUT[stage])

    def get_train_dataset(self, stage):
        """Returns the images in the stage's size."""
        return digits(True, SIZES[stage])


def digits(training: bool, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of a size, and their labels."""
    images, labels = load_mnist("train" if training else "test")
    images = (images / np.float32(255)).astype("float32")[..., None]
    if size != images.shape[1]:
        parts = [keras.ops.image.resize(part, (size, size), antialias=True) for part in np.array_split(images, 20)]
        images = np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])
    return images, labels.astype("int32")


def train(task_cls: type, trainer: type, steps: int, directory: str) -> tuple[float, float]:
    """Trains; returns the accuracy and the seconds."""
    data = {"train_data": {"global_batch_size": 128}, "validation_data": {"global_batch_size": 500}}
    params = es.ExperimentConfig(trainer=trainer())
    params.override({"task": data, "trainer": {"train_steps": steps, "steps_per_loop": 50}})
    params.override({"trainer": {"validation_interval": steps, "checkpoint_interval": 500}})
    begin = time.perf_counter()
    task = task_cls(params.task)
    _, logs = es.run_experiment(task, params, directory, export=False, verbose=False)
    return logs["accuracy"], time.perf_counter() - begin


def main() -> None:
    """Trains all three ways, and shows what each has cost."""
    share = sum(steps * (size / SIZES[-1]) ** 2 for steps, size in zip(STEPS, SIZES, strict=True)) / given.steps
    runs = {
        "full size all the time": (Digits, es.TrainerConfig, given.steps, 1.0),
        "full size, stopped early": (Digits, es.TrainerConfig, round(given.steps * share), share),
        f"growing over {len(SIZES)} stages": (GrowingDigits, ProgressiveTrainerConfig, sum(STEPS), share),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (task, trainer, steps, computed) in runs.items():
            accuracy, seconds = train(task, trainer, steps, f"{given.model_dir or folder}/{name.replace(' ', '-')}")
            print(f"{name:24s}  accuracy {accuracy:.4f}  computed {computed:4.0%}  {seconds:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
