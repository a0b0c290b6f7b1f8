"""Hostile model files, and the outcome of predicting with them.

Run as `python predict_hostile_child.py FOLDER CANARY SECRET`, with `tests/task` on the path, it tries all of them and
prints JSON. The access time of SECRET shows whether it was read; if CANARY exists, code was run.
"""

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import hostile_artefacts
import keras
import numpy as np
import tensorflow as tf

from everstep.errors import UsageError
from everstep.trained.models import KerasPredictor, SavedModelPredictor, load_keras

ONE = tf.TensorSpec((None, 4), tf.float32, name="x")


def functions(maker: Any) -> dict[str, Any]:
    """Returns functions that a hostile SavedModel could run on a prediction."""
    secret, canary = str(maker.secret), str(maker.canary)

    def reads(x: Any) -> Any:
        return {"y": x + tf.cast(tf.strings.length(tf.io.read_file(secret)), tf.float32)}

    def writes(x: Any) -> Any:
        with tf.control_dependencies([tf.io.write_file(canary, "x")]):
            return {"y": tf.identity(x)}

    def runs_python(x: Any) -> Any:
        return {"y": tf.reshape(tf.py_function(lambda y: y, [x], tf.float32), (-1, 4))}

    def prints(x: Any) -> Any:
        with tf.control_dependencies([tf.print("x", output_stream=f"file://{canary}")]):
            return {"y": tf.identity(x)}

    def restores(x: Any) -> Any:
        return {
            "y": x
            + tf.raw_ops.RestoreV2(prefix=secret, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32])[0]
        }

    return {f.__name__: f for f in (reads, writes, runs_python, prints, restores)}


def saved_model(path: Path, function: Any) -> Path:
    module = tf.Module()
    module.serve = tf.function(function, input_signature=[ONE])
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path


def shape_bomb(maker: Any) -> Path:
    """Writes a file of some kilobytes whose model would take eight gigabytes."""
    import zipfile

    config = json.loads(zipfile.ZipFile(maker.honest / "model.keras").read("config.json"))
    for layer in config["config"]["layers"]:
        if layer["class_name"] == "Dense":
            layer["config"]["units"] = 500_000_000
    return maker._keras(maker.root / "shape_bomb.keras", config)


FUNCTIONS = {"keras.utils": "get_file", "keras.models": "load_model", "keras.applications": "ResNet50"}
"""Keras functions that fetch files; none belongs into a model."""


def function_of_keras(maker: Any, module: str, name: str, as_class: bool) -> Path:
    """Writes a model with a layer whose activation is such a function."""
    import zipfile

    config = json.loads(zipfile.ZipFile(maker.honest / "model.keras").read("config.json"))
    evil = {"module": module, "class_name": name if as_class else "function", "config": {} if as_class else name}
    for layer in config["config"]["layers"]:
        if layer["class_name"] == "Dense":
            layer["config"]["activation"] = {**evil, "registered_name": name}
    return maker._keras(maker.root / f"{name}_{as_class}.keras", config)


def links_beside_a_vocabulary(maker: Any) -> Path:
    """Writes a file with a vocabulary, whose weights Keras itself loads, with links to another file."""
    import io

    import h5py

    kept = io.BytesIO()
    with h5py.File(kept, "w") as file:
        file["layers/dense/vars/0"] = h5py.ExternalLink(str(maker.secret), "/a")
        file["layers/dense/vars/1"] = np.zeros(3, "float32")
    vocabulary = ("assets/layers/string_lookup/vocabulary.txt", b"a\nb\n")
    return maker._keras(maker.root / "links_beside_a_vocabulary.keras", weights=kept.getvalue(), more=[vocabulary])


def outcome_of(path: Path) -> str:
    """Predicts with a file; returns `refused`, `predicted …` or `crashed …`."""
    x = [np.ones((2, 4), "float32")]
    try:
        made = KerasPredictor(load_keras(path)) if path.is_file() else SavedModelPredictor(path)
        return f"predicted {sorted(made.predict(x))[0]}"
    except UsageError as error:
        return "refused" if "\n" not in str(error) else f"refused in several lines: {error}"
    except BaseException as error:
        return f"crashed with {type(error).__name__}: {str(error)[:200]}"


def was_read(path: Path, secret: Path) -> tuple[str, bool]:
    os.utime(secret, ns=(0, secret.stat().st_mtime_ns))
    return outcome_of(path), secret.stat().st_atime_ns != 0


def hostile_files(maker: Any) -> dict[str, Path]:
    """Writes all hostile files; returns their paths by name."""
    names = [name for name in hostile_artefacts.payloads() if name.startswith("keras_")]
    paths = {
        name: getattr(maker, name)(hostile_artefacts.path_of(maker.root, name))
        for name in [*names, "tf_graph_that_reads"]
    }
    paths |= {name: saved_model(maker.root / name, function) for name, function in functions(maker).items()}
    return paths | made_of_keras(maker)


def made_of_keras(maker: Any) -> dict[str, Path]:
    """Writes `.keras` files that only harm a prediction; initial weights are read without building layers."""
    paths = {"shape_bomb": shape_bomb(maker), "links_beside_a_vocabulary": links_beside_a_vocabulary(maker)}
    for (module, name), as_class in itertools.product(FUNCTIONS.items(), (False, True)):
        paths[f"{name} {as_class}"] = function_of_keras(maker, module, name, as_class)
    return paths


def memory(line: str) -> int:
    return int(re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def main() -> None:
    root, canary, secret = map(Path, sys.argv[1:4])
    secret.write_text("one\t1\n")
    maker = hostile_artefacts.Maker(root, canary, secret)
    paths = hostile_files(maker)
    honest = saved_model(root / "honest_saved_model", lambda x: {"y": x * 2})
    good = [outcome_of(maker.honest / "model.keras"), outcome_of(honest)]
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    found = {name: was_read(path, secret) for name, path in paths.items()}
    grown = memory("VmHWM") - before
    ran = canary.exists()
    os.utime(secret, ns=(0, secret.stat().st_mtime_ns))
    secret.read_bytes()
    keras.saving.load_model(paths["keras_lambda"], safe_mode=False)(np.zeros((1, 4)))
    witnesses = {"read": secret.stat().st_atime_ns != 0, "run": canary.exists()}
    print(json.dumps({"found": found, "good": good, "grown": grown, "canary": ran, "witnesses": witnesses}))


if __name__ == "__main__":
    main()
