"""Hostile files with weights: each would do harm to a reader that trusts it."""

import json
import os
import shutil
import unittest.mock
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf
import tensorstore as ts

from everstep.checkpoint import arrays, manifest, parts
from everstep.checkpoint.manifest import Manifest

TERABYTES = 1 << 42
BOMB = 400 << 20
SHAPE = (4, 3)
WEIGHTS = "model.weights.h5"
PACKED = {"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": 0}


def model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


class Maker:
    """Writes payloads into a folder; `canary` must never be created, `secret` and files beside it never read."""

    def __init__(self, root: Path, canary: Path, secret: Path) -> None:
        self.root, self.canary, self.secret = root, canary, secret
        self.honest = root / "honest"
        self.honest.mkdir(parents=True)
        honest = model()
        honest.save(self.honest / "model.keras")
        honest.save_weights(self.honest / "a.weights.h5")
        self._checkpoint(self.honest / "checkpoints" / "1", small=16)  # only the bias
        variables = {
            f"v{i}": tf.Variable(keras.ops.convert_to_numpy(w), name=w.path) for i, w in enumerate(honest.weights)
        }
        tf.train.Checkpoint(**variables).write(str(self.honest / "ckpt-1"))

    # -- Keras files -------------------------------------------------------------------------------------------------

    def _keras(self, path: Path, config: Any = None, weights: bytes | None = None, more: Any = ()) -> Path:
        with zipfile.ZipFile(self.honest / "model.keras") as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                data = json.dumps(config).encode() if config and name == "config.json" else data
                new.writestr(name, weights if weights is not None and name == WEIGHTS else data)
            for info, data in more:
                new.writestr(info, data)
        return path

    def _with_layer(self, path: Path, layer: dict[str, Any]) -> Path:
        config = json.loads(zipfile.ZipFile(self.honest / "model.keras").read("config.json"))
        config["config"]["layers"].append(layer)
        return self._keras(path, config)

    def keras_lambda(self, path: Path) -> Path:
        canary = str(self.canary)
        layer = keras.layers.Lambda(lambda x: (open(canary, "w").close(), x)[1])
        return self._with_layer(path, keras.saving.serialize_keras_object(layer))

    def keras_saved_model_layer(self, path: Path) -> Path:
        settings = {"filepath": str(self.secret.parent), "name": "evil", "call_endpoint": "serve"}
        layer = {"module": "keras.layers", "class_name": "TFSMLayer", "config": settings, "registered_name": None}
        return self._with_layer(path, layer)

    def keras_vocabulary_of_a_file(self, path: Path) -> Path:
        settings = {"vocabulary": str(self.secret), "name": "evil"}
        layer = {"module": "keras.layers", "class_name": "StringLookup", "config": settings, "registered_name": None}
        return self._with_layer(path, layer)

    def keras_name_that_climbs(self, path: Path) -> Path:
        return self._keras(path, more=[(f"assets/../../{self.canary.name}", b"x")])

    def keras_name_of_the_root(self, path: Path) -> Path:
        return self._keras(path, more=[(str(self.canary), b"x")])

    def keras_name_of_a_drive(self, path: Path) -> Path:
        return self._keras(path, more=[("C:/canary", b"x")])

    def keras_link(self, path: Path) -> Path:
        info = zipfile.ZipInfo("assets")
        info.external_attr = 0o120777 << 16
        return self._keras(path, more=[(info, str(self.secret.parent).encode())])

    def keras_name_twice(self, path: Path) -> Path:
        with warnings.catch_warnings(action="ignore"):
            return self._keras(path, more=[(WEIGHTS, b"x")])

    def keras_bomb(self, path: Path) -> Path:
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
            file.open(WEIGHTS, "w") as packed,
        ):
            for _ in range(BOMB >> 20):
                packed.write(bytes(1 << 20))
        return path

    def keras_bomb_that_lies(self, path: Path) -> Path:
        """Declares that it unpacks to few bytes."""
        data = bytearray(self.keras_bomb(path).read_bytes())
        size = BOMB.to_bytes(4, "little")
        while (at := data.find(size)) >= 0:
            data[at : at + 4] = (1000).to_bytes(4, "little")
        path.write_bytes(data)
        return path

    def keras_without_weights(self, path: Path) -> Path:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("config.json", "{}")
        return path

    def keras_with_external_link(self, path: Path) -> Path:
        return self._keras(path, weights=self.h5_external_link(path.with_suffix(".tmp")).read_bytes())

    def keras_broken_pieces(self, path: Path) -> Path:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(WEIGHTS, np.random.default_rng(0).integers(0, 9, 10_000).astype("uint8").tobytes())
        data = bytearray(path.read_bytes())
        data[1000:1012] = bytes(12)
        path.write_bytes(data)
        return path

    # -- HDF5 --------------------------------------------------------------------------------------------------------

    def _h5(self, path: Path, change: Callable[[h5py.Group], None]) -> Path:
        shutil.copy(self.honest / "a.weights.h5", path)
        with h5py.File(path, "a") as file:
            change(file["layers/dense/vars"])
        return path

    def _elsewhere(self) -> str:
        """Writes another HDF5 file with a weight of the right shape; returns its path."""
        path = self.secret.with_name("other.h5")
        with h5py.File(path, "w") as file:
            file["kernel"] = np.full(SHAPE, 7.0, "float32")
        return str(path)

    def h5_external_link(self, path: Path) -> Path:
        return self._h5(path, lambda group: _replace(group, h5py.ExternalLink(self._elsewhere(), "/kernel")))

    def h5_external_group(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            group.file["more"] = h5py.ExternalLink(self._elsewhere(), "/")

        return self._h5(path, change)

    def h5_soft_link(self, path: Path) -> Path:
        return self._h5(path, lambda group: _replace(group, h5py.SoftLink("/layers/dense/vars/1")))

    def h5_stored_elsewhere(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            del group["0"]
            group.create_dataset("0", SHAPE, "float32", external=[(str(self.secret), 0, 48)])

        return self._h5(path, change)

    def h5_virtual(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            del group["0"]
            layout = h5py.VirtualLayout(SHAPE, "float32")
            layout[:] = h5py.VirtualSource(self._elsewhere(), "kernel", SHAPE)
            group.create_virtual_dataset("0", layout)

        return self._h5(path, change)

    def h5_packed_bomb(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            del group["0"]
            group.create_dataset("0", (TERABYTES,), "float32", chunks=(1 << 20,), compression="gzip")

        return self._h5(path, change)

    def h5_shape_bomb(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            del group["0"]
            group.create_dataset("0", (TERABYTES, 3), "float32", chunks=(1 << 20, 3))

        return self._h5(path, change)

    def h5_wide_bomb(self, path: Path) -> Path:
        """An array of the right shape, of texts of a gigabyte each."""

        def change(group: h5py.Group) -> None:
            del group["0"]
            group.create_dataset("0", SHAPE, "S1000000000", chunks=(1, 1))

        return self._h5(path, change)

    def h5_that_holds_itself(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            group["again"] = group.file["/"]

        return self._h5(path, change)

    def h5_objects(self, path: Path) -> Path:
        def change(group: h5py.Group) -> None:
            del group["0"]
            group.create_dataset("0", data=np.full(SHAPE, "cos\nsystem\n", object), dtype=h5py.string_dtype())

        return self._h5(path, change)

    def h5_cut_off(self, path: Path) -> Path:
        path.write_bytes((self.honest / "a.weights.h5").read_bytes()[:3000])
        return path

    def h5_very_deep(self, path: Path) -> Path:
        """Deeply nested groups: all their paths together take quadratic time and memory."""

        def change(group: h5py.Group) -> None:
            for _ in range(5_000):
                group = group.create_group("x")

        return self._h5(path, change)

    # -- TensorFlow --------------------------------------------------------------------------------------------------

    def _tf(self, folder: Path) -> Path:
        folder.mkdir()
        for file in self.honest.glob("ckpt-1.*"):
            shutil.copy(file, folder / file.name)
        return folder

    def tf_note_that_points_out(self, path: Path) -> Path:
        path.mkdir()
        (path / "checkpoint").write_text(f'model_checkpoint_path: "{self.honest}/ckpt-1"\n')
        return path

    def tf_linked_data(self, path: Path) -> Path:
        data = self._tf(path) / "ckpt-1.data-00000-of-00001"
        data.unlink()
        data.symlink_to(self.secret)
        return path / "ckpt-1"

    def tf_more_than_there_is(self, path: Path) -> Path:
        data = self._tf(path) / "ckpt-1.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:4])
        return path / "ckpt-1"

    def tf_broken(self, path: Path) -> Path:
        index = self._tf(path) / "ckpt-1.index"
        index.write_bytes(index.read_bytes()[:50])
        return path / "ckpt-1"

    def tf_graph_that_reads(self, path: Path) -> Path:
        """A SavedModel with the right variables whose graph reads the secret when it is loaded."""
        module = tf.Module()
        names = {"kernel": SHAPE, "bias": SHAPE[1:]}
        module.held = [tf.Variable(tf.zeros(shape), name=f"dense/{name}") for name, shape in names.items()]
        module.table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(str(self.secret), tf.string, 0, tf.int64, 1), -1
        )
        module.read = tf.function(lambda: tf.io.read_file(str(self.secret)), input_signature=[])
        tf.saved_model.save(module, str(path))
        return path

    # -- Everstep ----------------------------------------------------------------------------------------------------

    def _checkpoint(self, path: Path, change: Callable[[Path], None] = lambda path: None, small: int = 0) -> Path:
        """Writes a checkpoint whose arrays are in `state/`, unless they have less than `small` bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kernel, bias = np.zeros(SHAPE, "float32"), np.zeros(SHAPE[1:], "float32")
        with unittest.mock.patch.object(parts, "SMALL", small):
            arrays.write(path, {"model/dense/kernel": kernel, "model/dense/bias": bias}, {"step": 1})
        change(path)
        manifest.write(path, Manifest(int(path.name), "them", 0.0, {}, {}, "0"))
        return path

    def own_manifest_that_climbs(self, path: Path) -> Path:
        found = self._checkpoint(path / "1") / manifest.NAME
        document = json.loads(found.read_text())
        document.pop("digest")
        document["files"][os.path.relpath(self.secret, path / "1")] = [1, "0" * 64]
        found.write_text(manifest._text(document | {"digest": manifest._digest(document)}))
        return path

    def own_linked_file(self, path: Path) -> Path:
        def change(step: Path) -> None:
            (step / "state" / "more").symlink_to(self.secret)

        return self._checkpoint(path / "1", change)

    def own_linked_folder(self, path: Path) -> Path:
        def change(step: Path) -> None:
            shutil.move(step / "state", self.root / f"{path.name}-state")
            (step / "state").symlink_to(self.root / f"{path.name}-state")

        return self._checkpoint(path / "1", change)

    def own_shape_bomb(self, path: Path) -> Path:
        return self._checkpoint(path / "1", lambda step: _declare(step, [TERABYTES, 3], [1 << 20, 3]))

    def own_piece_bomb(self, path: Path) -> Path:
        return self._checkpoint(path / "1", lambda step: _declare(step, [*SHAPE], [1 << 20, 1 << 20]))

    def own_packed_bomb(self, path: Path) -> Path:
        """A chunk that unpacks to far more than the array has."""

        def change(step: Path) -> None:
            store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{step}/state/"}).result()
            key = "arrays.model/dense/kernel/"
            said = json.loads(store.read(f"{key}.zarray").result().value)
            store.write(f"{key}.zarray", json.dumps(said | {"compressor": PACKED}).encode()).result()
            store.write(f"{key}0.0", _packed_zeros()).result()

        return self._checkpoint(path / "1", change)

    def own_index_bomb(self, path: Path) -> Path:
        """A database whose index holds many large values, all zero."""

        def change(step: Path) -> None:
            shutil.rmtree(step / "state")
            settings = {"max_inline_value_bytes": 1 << 20, "max_decoded_node_bytes": 2_000_000_000}
            spec = {"driver": "ocdbt", "base": f"file://{step}/state/", "config": settings}
            store, transaction = ts.KvStore.open(spec).result(), ts.Transaction()
            for number in range(BOMB >> 20):
                store.with_transaction(transaction)[f"arrays.{number}/.zarray"] = bytes(1 << 20)
            transaction.commit_sync()

        return self._checkpoint(path / "1", change)

    def _index(self, path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
        """Writes a checkpoint whose small arrays have another index; the text of a new one, or nothing, is returned."""

        def replace(step: Path) -> None:
            file = step / parts.FOLDER / "0" / "index.json"
            index = json.loads(file.read_text())
            file.write_text(change(index) or json.dumps(index))

        return self._checkpoint(path / "1", replace, small=parts.SMALL)

    def own_small_shape_bomb(self, path: Path) -> Path:
        return self._index(path, lambda index: index["model/dense/kernel"].update(shape=[TERABYTES, 3]))

    def own_small_part_bomb(self, path: Path) -> Path:
        def change(index: dict[str, Any]) -> None:
            index["model/dense/kernel"].update(
                shape=[TERABYTES, 3], parts=[{"start": [0, 0], "shape": [TERABYTES, 3], "offset": 0}]
            )

        return self._index(path, change)

    def own_small_type_bomb(self, path: Path) -> Path:
        """Text of no length: NumPy makes it longer."""

        def change(index: dict[str, Any]) -> None:
            part = {"start": [0], "shape": [TERABYTES], "offset": 0}
            index["model/dense/bias"] = {"shape": [TERABYTES], "dtype": "U0", "parts": [part]}

        return self._index(path, change)

    def own_small_object(self, path: Path) -> Path:
        return self._index(path, lambda index: index["model/dense/kernel"].update(dtype="object"))

    def own_small_index_that_nests(self, path: Path) -> Path:
        return self._index(path, lambda index: "[" * 100_000)

    def own_small_index_bomb(self, path: Path) -> Path:
        return self._index(path, lambda index: f"[{'[],' * 5_000_000}[]]")

    def own_manifest_of_nonsense(self, path: Path) -> Path:
        document = {"files": 3}
        found = self._checkpoint(path / "1") / manifest.NAME
        found.write_text(manifest._text(document | {"digest": manifest._digest(document)}))
        return path

    def own_manifest_that_nests(self, path: Path) -> Path:
        (self._checkpoint(path / "1") / manifest.NAME).write_text("[" * 100_000)
        return path

    def own_large_manifest(self, path: Path) -> Path:
        (self._checkpoint(path / "1") / manifest.NAME).write_text(f"[{'[],' * 5_000_000}[]]")
        return path

    # -- directories -------------------------------------------------------------------------------------------------

    def folder_with_a_link(self, path: Path) -> Path:
        path.mkdir()
        (path / "model.keras").symlink_to(self.honest / "model.keras")
        return path


def payloads() -> list[str]:
    return [name for name in vars(Maker) if name.partition("_")[0] in ("keras", "h5", "tf", "own", "folder")]


def path_of(root: Path, name: str) -> Path:
    """Returns the path of a payload, with the extension of its format."""
    ending = {"keras": ".keras", "h5": ".weights.h5"}.get(name.partition("_")[0], "")
    return root / f"{name}{ending}"


def _replace(group: h5py.Group, link: Any) -> None:
    del group["0"]
    group["0"] = link


def _packed_zeros() -> bytes:
    """Returns one chunk of an array, compressed by blosc."""
    size = BOMB // 4
    said = {"shape": [size], "chunks": [size], "dtype": "<f4", "compressor": PACKED}
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": said | {"fill_value": None}}
    array = ts.open(spec, create=True, context=ts.Context()).result()
    array.write(np.zeros(size, "float32")).result()
    return array.kvstore.read("0").result().value


def _declare(step: Path, shape: list[int], chunks: list[int]) -> None:
    """Replaces the declaration of an array in a checkpoint, without storing values."""
    ts.open(
        {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": f"file://{step}/state/", "path": "arrays.model/dense/kernel/"},
            "metadata": {"shape": shape, "chunks": chunks, "dtype": "<f4", "compressor": None},
        },
        create=True,
        delete_existing=True,
    ).result()
