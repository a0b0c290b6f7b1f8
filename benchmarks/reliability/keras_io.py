"""Programs from keras.io with one line changed: the same numbers as `model.fit`, and the same bits after a SIGKILL.

`python -m benchmarks.reliability.keras_io /path/to/keras-io` runs each program of a checkout of the keras-io repository
three times: as it is; with `keras.Model.fit = everstep.fit`; and so once more, killed as soon as it has saved something
and started again, until it finishes. It prints a row of Markdown for each.

Nothing is downloaded: the data sets are replaced by small random ones of the same shapes. Shuffling is off, and no fit
is longer than three epochs. Whatever else a program does (plots, predictions, saving) is left as it is.
"""

import argparse
import hashlib
import inspect
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, EPOCHS, KILLS = 192, 3, 2

TENSORFLOW, JAX, TORCH = ("tensorflow",), ("jax",), ("torch",)
ALL = (*TENSORFLOW, *JAX, *TORCH)

PROGRAMS = {
    "guides/custom_train_step_in_tensorflow.py": TENSORFLOW,
    "guides/custom_train_step_in_jax.py": JAX,
    "guides/custom_train_step_in_torch.py": TORCH,
    "guides/writing_your_own_callbacks.py": ALL,
    "examples/generative/dcgan_overriding_train_step.py": TENSORFLOW,
    "examples/generative/conditional_gan.py": TENSORFLOW,
    "examples/generative/wgan_gp.py": TENSORFLOW,
    "examples/generative/vae.py": TENSORFLOW,
    "examples/generative/vq_vae.py": TENSORFLOW,
    "examples/keras_recipes/antirectifier.py": ALL,
    "examples/keras_recipes/endpoint_layer_pattern.py": ALL,
    "examples/keras_recipes/sklearn_metric_callbacks.py": TENSORFLOW,
    "examples/keras_recipes/trainer_pattern.py": TENSORFLOW,
    "examples/nlp/addition_rnn.py": JAX,
    "examples/nlp/bidirectional_lstm_imdb.py": ALL,
    "examples/nlp/text_classification_with_transformer.py": ALL,
    "examples/vision/autoencoder.py": ALL,
    "examples/vision/knowledge_distillation.py": ALL,
    "examples/vision/mlp_image_classification.py": JAX,
    "examples/vision/mnist_convnet.py": ALL,
    "examples/vision/siamese_contrastive.py": ALL,
}
"""Each program, and the backends it is run on: those that it was written for."""

SMALLER = {
    "addition_rnn.py": [("TRAINING_SIZE = 50000", "TRAINING_SIZE = 500"), ("epochs = 30", "epochs = 3")],
    "bidirectional_lstm_imdb.py": [("maxlen = 200", "maxlen = 40"), ("max_features = 20000", "max_features = 500")],
    "text_classification_with_transformer.py": [
        ("maxlen = 200", "maxlen = 40"),
        ("vocab_size = 20000", "vocab_size = 500"),
    ],
    "siamese_contrastive.py": [("30000", str(SAMPLES // 2))],
    "mlp_image_classification.py": [("image_size = 64", "image_size = 32"), ("batch_size = 128", "batch_size = 64")],
}
"""Sizes that would take minutes here, and what stands in their place."""


# -- one program, in a process of its own -----------------------------------------------------------------------------


def run_program(program: Path, folder: Path, everstep_fit: bool) -> None:
    """Runs one program in `folder`; writes the results of its fits to `fits.json` there."""
    import keras

    keras.utils.set_random_seed(1)
    _replace_data(keras)
    _replace_packages()
    fits: list[dict[str, Any]] = []
    _replace_fit(keras, folder, fits, everstep_fit)
    source = program.read_text("utf-8")
    for old, new in SMALLER.get(program.name, []):
        if old not in source:
            raise SystemExit(f"{program.name} has no {old!r} any more: adapt SMALLER")
        source = source.replace(old, new)
    script = folder / program.name
    script.write_text(re.sub(r"^[!%].*$", "", source, flags=re.MULTILINE), "utf-8")  # cells of a notebook
    os.chdir(folder)
    runpy.run_path(str(script), run_name="__main__")
    (folder / "fits.json").write_text(json.dumps(fits), "utf-8")


def _replace_fit(keras: Any, folder: Path, fits: list[dict[str, Any]], everstep_fit: bool) -> None:
    original = keras.Model.fit
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(self, *args, **kwargs).arguments
        model = arguments.pop("self")
        arguments |= {"shuffle": False, "verbose": 0, "epochs": min(arguments.get("epochs", 1), EPOCHS)}
        if everstep_fit:
            import everstep

            history = everstep.fit(model, **arguments, model_dir=folder / f"fit-{len(fits)}")
        else:
            history = original(model, **arguments)
        logs = {name: [float(np.mean(v)) for v in values] for name, values in history.history.items()}
        digest = hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.get_weights())).hexdigest()
        fits.append({"history": logs, "weights": digest})
        return history

    keras.Model.fit = fit


def _replace_data(keras: Any) -> None:
    """Small random data in place of what would be downloaded, and no shuffling in the pipelines."""
    numbers = np.random.default_rng(0)

    def images(*shape: int, classes: int = 10, column: bool = False) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            labels = (SAMPLES, 1) if column else (SAMPLES,)
            return tuple(
                (numbers.integers(0, 256, (SAMPLES, *shape), "uint8"), numbers.integers(0, classes, labels, "uint8"))
                for _ in range(2)
            )

        return load

    def reviews(num_words: int = 500, **kwargs: Any) -> Any:
        def part() -> Any:
            texts = [numbers.integers(1, num_words, numbers.integers(5, 60)).tolist() for _ in range(SAMPLES)]
            return np.array(texts, object), numbers.integers(0, 2, SAMPLES)

        return part(), part()

    keras.datasets.mnist.load_data = images(28, 28)
    keras.datasets.fashion_mnist.load_data = images(28, 28)
    keras.datasets.cifar10.load_data = images(32, 32, 3, column=True)
    keras.datasets.cifar100.load_data = images(32, 32, 3, classes=100, column=True)
    keras.datasets.imdb.load_data = reviews
    if "tensorflow" in os.environ["KERAS_BACKEND"]:
        import tensorflow as tf

        tf.data.Dataset.shuffle = lambda self, *args, **kwargs: self


def _replace_packages() -> None:
    """Stands in for packages that fetch data, or show pictures in a notebook."""
    from PIL import Image

    def download(url: str, output: str, **kwargs: Any) -> None:
        numbers = np.random.default_rng(0)
        with zipfile.ZipFile(output, "w") as packed:
            for index in range(SAMPLES // 2):
                with packed.open(f"faces/{index:04}.png", "w") as file:
                    Image.fromarray(numbers.integers(0, 256, (64, 64, 3), "uint8")).save(file, "png")

    nothing = lambda *args, **kwargs: None  # noqa: E731
    stands_in = {
        "gdown": {"download": download},
        "imageio": {"mimsave": nothing},
        "tensorflow_docs": {},
        "tensorflow_docs.vis": {"embed": types.SimpleNamespace(embed_file=nothing)},
    }
    for name, attributes in stands_in.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module


# -- all of them -------------------------------------------------------------------------------------------------------


def compare(program: Path, backend: str, folder: Path) -> tuple[str, bool]:
    """Runs a program three ways; returns the row of a table, and whether it is as it should be."""
    name = f"{program.parent.name}/{program.stem} | {backend}"
    plain, failed = _finish(program, backend, folder / "plain", False)
    if plain is None:
        return f"| {name} | does not run with `fit` itself: {failed} | |", True
    ours, failed = _finish(program, backend, folder / "ours", True)
    if ours is None:
        return f"| {name} | FAILED: {failed} | |", False
    killed, kills, failed = _killed(program, backend, folder / "killed")
    fits = len(plain)
    equal = sum(a["weights"] == b["weights"] for a, b in zip(plain, ours, strict=True))
    worst = max(map(_difference, plain, ours))
    good = worst <= 1e-4
    numbers = "the same bits" if equal == fits else f"{equal} of {fits} fits the same bits, logs differ by {worst:.1e}"
    if killed is None:
        return f"| {name} | {numbers} | FAILED: {failed} |", False
    same = [fit["weights"] for fit in killed] == [fit["weights"] for fit in ours]
    return f"| {name} | {numbers} | {kills} kills: {'the same bits' if same else 'OTHER BITS'} |", good and same


def _difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the largest relative difference of two histories; infinite where they have other names or lengths."""
    one, other = one["history"], other["history"]
    if {k: len(v) for k, v in one.items()} != {k: len(v) for k, v in other.items()}:
        return float("inf")
    pairs = [(a, b) for name in one for a, b in zip(one[name], other[name], strict=True)]
    return max((abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in pairs if a == a or b == b), default=0.0)


def _start(program: Path, backend: str, folder: Path, everstep_fit: bool) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"KERAS_BACKEND": backend, "MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __spec__.name, "--one", str(program), str(folder), "--", str(int(everstep_fit))]
    with open(folder / "output.txt", "wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def _result(process: subprocess.Popen[bytes], folder: Path) -> tuple[list[dict[str, Any]] | None, str]:
    if process.wait():
        lines = (folder / "output.txt").read_text("utf-8", "replace").strip().splitlines()
        return None, lines[-1][:200] if lines else f"exit {process.returncode}"
    return json.loads((folder / "fits.json").read_text("utf-8")), ""


def _finish(program: Path, backend: str, folder: Path, everstep_fit: bool) -> tuple[list[dict[str, Any]] | None, str]:
    return _result(_start(program, backend, folder, everstep_fit), folder)


def _killed(program: Path, backend: str, folder: Path) -> tuple[list[dict[str, Any]] | None, int, str]:
    """Kills a program once it has saved a checkpoint that was not there before; starts it again till it ends."""
    kills, moment = 0, random.Random(f"{program.name} {backend}")
    while True:
        process = _start(program, backend, folder, True)
        before = set(folder.glob("fit-*/checkpoints/[0-9]*"))
        while kills < KILLS and process.poll() is None:
            if set(folder.glob("fit-*/checkpoints/[0-9]*")) - before:
                time.sleep(moment.random() * 0.1)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        if process.wait() != -signal.SIGKILL:
            return (*_result(process, folder)[:1], kills, _result(process, folder)[1])
        kills += 1
        for left in [folder / "celeba_gan"]:  # the program makes it, and would find it there
            shutil.rmtree(left, ignore_errors=True)


def main() -> int:
    """Runs the programs that were named, or all, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.keras_io", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of the keras-io repository")
    parser.add_argument("names", nargs="*", help="parts of the names of programs; all by default")
    parser.add_argument("--backends", nargs="+", default=list(ALL))
    arguments = parser.parse_args()
    wrong = 0
    print("| program | backend | against `fit` | killed and run again |\n|---|---|---|---|")
    for name, backends in PROGRAMS.items():
        for backend in backends:
            if backend not in arguments.backends or not any(part in name for part in arguments.names or [""]):
                continue
            with tempfile.TemporaryDirectory() as folder:
                row, good = compare(arguments.checkout / name, backend, Path(folder))
            print(row, flush=True)
            wrong += not good
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_program(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[5] == "1")
    else:
        raise SystemExit(main())
