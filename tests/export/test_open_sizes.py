"""Models with inputs of open lengths, as programs of JAX."""

import keras
import numpy as np
import pytest

from everstep.export.model_export import export_all, sample_inputs
from everstep.export.open_sizes import own_symbols, shared_symbols
from everstep.export.serving import ExportModule, export

NAMES = ("ids", "mask", "segments")

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX has symbols for open sizes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_each_open_size_has_its_own_symbol_and_the_batch_is_one():
    first, second, third = own_symbols([(None, None), (None, None), (8, 3)])
    assert first.startswith("(batch, ")
    assert second.startswith("(batch, ")
    assert first != second
    assert third == "(8, 3)"


def test_sizes_that_are_equal_in_a_sample_share_a_symbol():
    shapes = [(None, None, 4), (None, None), (None, None)]
    first, second, third = shared_symbols(shapes, [(2, 7, 4), (2, 7), (2, 9)])
    assert first == second.replace(")", ", 4)")
    assert third != second
    assert len(set(shared_symbols([(None, None), (None, None)]))) == 1


def masked_texts():
    """A model that needs all of its inputs to have one length."""
    ids, mask, segments = (keras.Input((None,), dtype="int32", name=name) for name in NAMES)
    weight = keras.ops.expand_dims(keras.ops.cast(mask, "float32"), -1)
    x = keras.layers.Embedding(10, 16)(ids) * weight + keras.layers.Embedding(2, 16)(segments)
    return keras.Model([ids, mask, segments], keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))


def of_length(*lengths):
    return {name: np.ones((3, length), "int32") for name, length in zip(NAMES, lengths, strict=True)}


def test_a_model_that_combines_its_inputs_takes_texts_of_any_common_length(tmp_path, caplog):
    import tensorflow as tf

    model = masked_texts()
    written = export_all(model, tmp_path, sample_inputs(model, of_length(7, 7, 7)), ["saved_model"])
    assert written == [tmp_path / "saved_model"]
    assert [record.args[0] for record in caplog.records] == ["inputs of equal lengths"]
    longer = {name: tf.constant(array) for name, array in of_length(12, 12, 12).items()}
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(loaded.serve(longer), model.predict(of_length(12, 12, 12), verbose=0), rtol=1e-5)


def test_a_module_around_such_a_model(tmp_path):
    import tensorflow as tf

    directory = export(ExportModule(None, masked_texts()), ["serve"], tmp_path, timestamped=False)
    tensors = {name: tf.constant(array) for name, array in of_length(5, 5, 5).items()}
    loaded = tf.saved_model.load(directory)
    assert loaded.signatures["serving_default"](**tensors)["output_0"].shape == (3, 1)
