"""The private names of Keras that are used: each exists in the installed version."""

import keras
import pytest

from everstep import keras_internals

pytestmark = pytest.mark.backend

WHERE = keras_internals._MODULES | keras_internals._NAMES
OTHERS = {"jax", "tensorflow", "torch"} - {keras.backend.backend()}


@pytest.mark.parametrize("name", sorted(WHERE))
def test_a_private_name_exists(name):
    if any(f".backend.{other}" in WHERE[name] for other in OTHERS):
        pytest.skip("of another backend")
    assert getattr(keras_internals, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="to_snake"):
        keras_internals.to_snake  # noqa: B018
