"""Small arrays of a checkpoint: written without Orbax, read back to the same bits, and only if they fit."""

import json
import math
import shutil
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint import arrays, base, manifest, partial_read, parts
from everstep.checkpoint.averaging import write_average
from everstep.checkpoint.digests import digest
from everstep.checkpoint.manifest import Base, Damaged, Manifest
from everstep.checkpoint.orbax import OrbaxCheckpointer

DTYPES = [np.dtype(name) for name in ("bool", "int8", "int64", "uint16", "float16", "float32", "float64", "complex64")]
DTYPES += [np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "int4", "float8_e4m3fn", "float8_e5m2")]
SHAPES = st.one_of(st.just(()), st.lists(st.integers(0, 4), max_size=5), st.lists(st.just(1), min_size=33, max_size=64))
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@st.composite
def an_array(draw):
    """An array of any type and shape; its bytes may be in any order."""
    dtype, shape = draw(st.sampled_from(DTYPES)), tuple(draw(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    array = (random.random(shape) * 7).astype(dtype)
    if array.ndim and draw(st.booleans()):
        array = array.T if draw(st.booleans()) else array[::-1]
    return array


@pytest.fixture
def written(tmp_path):
    """Writes a state; returns its directory."""

    def write(state, name="1", **other):
        path = tmp_path / name
        arrays.write(path, state, {"step": 1})
        manifest.write(path, Manifest(1, "a run", 0.0, {}, {}, "0.1.0", **other))
        return path

    return write


def same(found, expected):
    assert {key: (array.dtype, array.shape) for key, array in found.items()} == {
        key: (array.dtype, array.shape) for key, array in expected.items()
    }
    assert digest(found) == digest(expected)


@settings(max_examples=60)
@given(state=st.dictionaries(KEYS, an_array(), max_size=8))
def test_any_array_comes_back(state):
    with tempfile.TemporaryDirectory() as folder:
        parts.write(Path(folder, parts.FOLDER, "0"), {key: parts.in_one(array) for key, array in state.items()})
        found = parts.find(Path(folder))
        same({key: array.read() for key, array in found.items()}, state)
        for key, array in found.items():
            place = tuple(slice(1, 3) for _ in array.shape)
            np.testing.assert_array_equal(array.read(place), state[key][place])


@settings(max_examples=12)
@given(contents=st.lists(an_array(), max_size=5))
def test_any_state_comes_back_from_a_checkpoint(contents):
    state = {f"model/{number}": array for number, array in enumerate(contents)}
    with tempfile.TemporaryDirectory() as folder:
        arrays.write(Path(folder, "1"), state, {})
        found = arrays.read(Path(folder, "1"))[0]
        same(found, state)
        assert all(array.flags.writeable and array.flags.aligned for array in found.values())
        shapes = partial_read.shapes(Path(folder, "1"))
        assert shapes == {key: array.shape for key, array in state.items() if array.size}
        same(partial_read.read(Path(folder, "1"), shapes), {key: state[key] for key in shapes})


def mixed(step=1):
    """Arrays below, at and above the limit, which a test sets to 1,000 bytes."""
    random = np.random.default_rng(step)
    sizes = {"bias": 4, "almost": 249, "limit": 250, "kernel": 900}
    state = {f"model/{name}": random.random(size, "float32") for name, size in sizes.items()}
    return state | {"model/step": np.array(step), "model/none": np.zeros((0, 2), "float32")}


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(parts, "SMALL", 1000)


def test_only_small_arrays_are_parts(written, limit):
    path = written(mixed())
    assert set(parts.find(path)) == {"model/bias", "model/almost", "model/step"}
    same(arrays.read(path)[0], mixed())
    same(
        partial_read.read(path, ["model/kernel", "model/bias"]), {k: mixed()[k] for k in ("model/kernel", "model/bias")}
    )


def test_what_orbax_writes_does_not_grow_with_small_arrays(written, monkeypatch):
    saved = []
    save = arrays.ocp.Checkpointer.save
    monkeypatch.setattr(
        arrays.ocp.Checkpointer,
        "save",
        lambda self, path, args: saved.append(len(args["state"].item["arrays"])) or save(self, path, args=args),
    )
    large = {f"model/{number}/kernel": np.zeros((1024, 1024), "float32") for number in range(2)}
    files = []
    for count in (1, 700):
        small = {f"model/{number}/bias": np.ones(8, "float32") for number in range(count)}
        files.append(len(list(written(large | small, str(count)).rglob("*"))))
    assert saved == [2, 2]
    assert abs(files[0] - files[1]) <= 5  # Orbax divides its data into one file more or less


def test_text_is_refused_as_before(written):
    with pytest.raises(ValueError, match="Unsupported data type"):
        written({"model/words": np.array(["a", "b"])})


def test_byte_order_is_not_kept(written):
    array = np.arange(3, dtype=">f4")
    found = arrays.read(written({"model/w": array}))[0]["model/w"]
    assert found.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("version", [manifest.WHOLE, manifest.IN_PARTS, manifest.ON_BASE])
def test_checkpoints_of_before_are_restored(tmp_path, monkeypatch, version):
    """Those had all arrays in `state/`, which no limit forbids; divided ones are in `test_parts.py`."""
    monkeypatch.setattr(parts, "SMALL", 0)
    on = Base(digest({"model/frozen": np.ones(3)}), variables=1) if version == manifest.ON_BASE else None
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="a run")
    if on is not None:
        checkpointer.save_base(on, {"model/frozen": np.ones(3)})
    checkpointer.save(1, mixed(), {"step": 1}, base=on)
    checkpointer.close()
    path = tmp_path / "checkpoints" / "1"
    assert not (path / parts.FOLDER).exists()
    document = json.loads((path / manifest.NAME).read_text()) | {"format": version}
    document.pop("digest")
    (path / manifest.NAME).write_text(manifest._text(document | {"digest": manifest._digest(document)}))
    monkeypatch.undo()
    expected = mixed() | ({} if on is None else {"model/frozen": np.ones(3)})
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="a run")
    same(checkpointer.restore()[0], expected)
    checkpointer.save(2, mixed(2), {"step": 2}, base=on)
    checkpointer.close()
    write_average([path, tmp_path / "checkpoints" / "2"], tmp_path / "average", lambda keys: {k: k for k in keys})
    mean = (mixed()["model/bias"].astype(float) + mixed(2)["model/bias"]) / 2
    np.testing.assert_array_equal(arrays.read(tmp_path / "average")[0]["model/bias"], mean.astype("float32"))


def test_frozen_weights_are_small_arrays_too(tmp_path, limit):
    on = Base(digest({"model/frozen": np.ones(3)}), variables=1)
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="a run")
    checkpointer.save_base(on, {"model/frozen": np.ones(3)})
    checkpointer.save(1, mixed(), {"step": 1}, base=on)
    checkpointer.close()
    path = tmp_path / "checkpoints" / "1"
    assert set(parts.find(base.find(path))) == {"model/frozen"}
    expected = mixed() | {"model/frozen": np.ones(3)}
    same(OrbaxCheckpointer(tmp_path / "checkpoints").restore()[0], expected)
    same(
        partial_read.read(path, ["model/frozen", "model/step"]),
        {k: expected[k] for k in ("model/frozen", "model/step")},
    )


@pytest.mark.parametrize("name", ["data", "index.json"])
@pytest.mark.parametrize("way", ["flipped", "shorter", "missing"])
def test_damage_is_found(tmp_path, name, way):
    checkpointer = OrbaxCheckpointer(tmp_path, run="a run")
    for step in (1, 2):
        checkpointer.save(step, mixed(step), {"step": step})
    checkpointer.wait()
    file = tmp_path / "2" / parts.FOLDER / "0" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if way == "missing":
        file.unlink()
    else:
        file.write_bytes(content if way == "flipped" else content[:-1])
    state, meta = checkpointer.restore()
    assert meta == {"step": 1}
    same(state, mixed())
    assert (tmp_path / "2.damaged").is_dir()


# -- a hostile index ---------------------------------------------------------------------------------------------------

HUGE = st.sampled_from([-1, 0, 1, 2, 3, 1 << 31, 1 << 62, 1 << 63, 1 << 70, 10**40])
JSON = st.recursive(
    st.none() | st.booleans() | HUGE | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
LENGTHS = st.lists(HUGE | st.integers(0, 3), max_size=3) | st.just([1] * 65) | JSON
PART = st.fixed_dictionaries({"start": LENGTHS, "shape": LENGTHS, "offset": HUGE | JSON}) | JSON
DTYPE_NAMES = st.sampled_from(
    ["float32", "int8", "bool", "bfloat16", "U0", "S0", "V0", "V8", "O", "i4,i4", "M8[s]", "f", "nothing", "", "finfo"]
)
ENTRY = (
    st.fixed_dictionaries({"shape": LENGTHS, "dtype": DTYPE_NAMES | JSON, "parts": st.lists(PART, max_size=3)}) | JSON
)
INDEX = st.dictionaries(st.sampled_from(["a", "b", "model/w"]), ENTRY, max_size=3) | JSON
TEXT = INDEX.map(json.dumps).map(str.encode) | st.binary(max_size=40)


@settings(max_examples=400)
@given(text=TEXT, data=st.binary(max_size=40))
def test_a_hostile_index_is_damage_or_fits_its_data(text, data):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, parts.FOLDER, "0")
        place.mkdir(parents=True)
        (place / "index.json").write_bytes(text)
        (place / "data").write_bytes(data)
        try:
            found = {key: array.read() for key, array in parts.find(Path(folder)).items()}
        except Damaged:
            return
        assert sum(array.nbytes for array in found.values()) <= len(data)


@settings(max_examples=200)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(max_size=6), st.integers(0, 6)), max_size=4))
def test_a_changed_index_is_damage_or_fits_its_data(changes):
    """Bytes of a real one are replaced, inserted and cut out."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, parts.FOLDER, "0")
        parts.write(place, {key: parts.in_one(array) for key, array in mixed().items()})
        text = (place / "index.json").read_bytes()
        for at, new, cut in changes:
            at %= len(text) + 1
            text = text[:at] + new + text[at + cut :]
        (place / "index.json").write_bytes(text)
        try:
            found = {key: array.read() for key, array in parts.find(Path(folder)).items()}
        except Damaged:
            return
        assert sum(array.nbytes for array in found.values()) <= (place / "data").stat().st_size


def hostile(change):
    """Returns a text made from the index of two arrays."""
    return lambda index: json.dumps(index | {"model/w": index["model/w"] | change})


PART_OF_W = {"start": [0, 0], "shape": [2, 3], "offset": 0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lambda index: json.dumps(index)[:-1], "cannot be used: JSONDecodeError"),
        (lambda index: "[" * 100_000, "cannot be used: RecursionError"),
        (lambda index: f"[{'[],' * 5_000_000}[]]", "cannot be used|far too large"),
        (hostile({"shape": [2, 1 << 40]}), "6 of 2,199,023,255,552 elements"),
        (hostile({"shape": [1 << 70, 3]}), "cannot be used: ValueError"),
        (hostile({"shape": [1 << 40, 1 << 40]}), "cannot be used: ValueError"),
        (hostile({"shape": [0, 1 << 40, 1 << 40], "parts": []}), "cannot be used: ValueError"),
        (hostile({"shape": [1] * 65}), "cannot be used: ValueError"),
        (hostile({"shape": [2.0, 3]}), "cannot be used: ValueError"),
        (hostile({"dtype": "U0"}), "do not fit"),
        (hostile({"dtype": "object"}), "do not fit"),
        (hostile({"dtype": "i2,i2"}), "do not fit"),
        (hostile({"parts": [PART_OF_W, PART_OF_W]}), "share bytes|12 of 6"),
        (hostile({"parts": [PART_OF_W | {"offset": 1 << 40}]}), "do not fit"),
        (hostile({"parts": [PART_OF_W | {"offset": math.inf}]}), "cannot be used"),
        (hostile({"parts": [{"start": [0, 0], "offset": 0}]}), "cannot be used: KeyError"),
        (lambda index: json.dumps({f"model/{number}": index["model/w"] for number in range(99)}), "share bytes"),
    ],
)
def test_a_hostile_index_is_refused(written, text, reason):
    path = written({"model/w": np.ones((2, 3)), "model/b": np.ones(2)})
    file = path / parts.FOLDER / "0" / "index.json"
    file.write_text(text(json.loads(file.read_text())))
    for reading in (arrays.read, partial_read.shapes):
        with pytest.raises(Damaged, match=reason):
            reading(path)


def test_of_a_key_that_is_there_twice_the_last_one_counts(written):
    path = written({"model/w": np.ones(2), "model/x": np.zeros(2)})
    file = path / parts.FOLDER / "0" / "index.json"
    file.write_text(file.read_text().replace("model/x", "model/w"))
    same(arrays.read(path)[0], {"model/w": np.zeros(2)})


def test_a_copy_without_small_arrays_is_damaged(written):
    path = written(mixed())
    shutil.rmtree(path / parts.FOLDER)
    with pytest.raises(Damaged, match="is missing"):
        manifest.verify(path)
