import hashlib
import struct

import ml_dtypes
import numpy as np

from everstep.checkpoint.digests import digest, weights_digest


def test_the_format_is_fixed():
    state = {"b": np.array(3, np.int64), "a": np.array([[1.0], [2.0]], np.float32)}
    header_a, header_b = b'["a", "float32", [2, 1]]', b'["b", "int64", []]'
    stream = struct.pack("<Q", len(header_a)) + header_a + struct.pack("<ff", 1.0, 2.0)
    stream += struct.pack("<Q", len(header_b)) + header_b + struct.pack("<q", 3)
    assert digest(state) == hashlib.sha256(stream).hexdigest()


def test_order_layout_and_byte_order_do_not_matter():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = digest({"a": array, "b": array})
    assert digest({"b": np.asfortranarray(array), "a": array.astype(">f4")}) == a
    assert digest({"a": array[:, ::-1][:, ::-1], "b": array}) == a


DIFFERENT = [
    {},
    {"a": np.zeros(2, np.float32)},
    {"b": np.zeros(2, np.float32)},
    {"a": np.zeros(2, np.int32)},
    {"a": np.zeros((2, 1), np.float32)},
    {"a": -np.zeros(2, np.float32)},
    {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)},
    {"a": np.zeros(0, np.float32)},
    {"a": np.zeros((), np.float32)},
    {"a": np.zeros(2, np.float16)},
    {"a": np.zeros(2, ml_dtypes.bfloat16)},
    {"a": np.zeros(2, bool)},
]


def test_every_difference_shows():
    assert len({digest(state) for state in DIFFERENT}) == len(DIFFERENT)


def test_weights_are_the_models_own():
    model = {"model/w": np.ones(2)}
    assert weights_digest({**model, "models/x": np.ones(1), "optimizer/model/w": np.ones(1)}) == digest(model)
