"""What a description says of a layer, taken apart again."""

import pytest

from everstep.task import differing_arguments
from everstep.task.layer_text import read_layer


def test_a_layer():
    layer = read_layer("Dense(activation=relu, units=16, use_bias=True) <- flatten")
    assert layer.name == "Dense"
    assert layer.arguments == {"activation": "relu", "units": "16", "use_bias": "True", "inputs": "flatten"}
    assert read_layer("Flatten") == ("Flatten", {})
    inner = read_layer("Bidirectional(layer=LSTM(units=4, dropout=0.1), shape=[1, 2]) <- a:1:0, b; c -> d")
    assert inner.arguments == {
        "layer": "LSTM(units=4, dropout=0.1)",
        "shape": "[1, 2]",
        "inputs": "a:1:0, b; c",
        "outputs": "d",
    }


@pytest.mark.parametrize("text", ["", "0.5", "two words", "Dense(units=3", "Dense(3)", "D(units=1… sha256:12", "f)("])
def test_other_texts(text):
    assert read_layer(text) is None or not read_layer(text).arguments


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["Dense(units=16)", "Dense(units=32)"], [("units", ["16", "32"])]),
        (["Dense(units=16) <- a", "Dense(units=16) <- b"], [("inputs", ["a", "b"])]),
        (["D(a=1)", "D(a=1, b=2)", "D(a=3)"], [("a", ["1", "1", "3"]), ("b", [None, "2", None])]),
        (["B(layer=L(n=1, k=2))", "B(layer=L(n=5, k=2))"], [("layer n", ["1", "5"])]),
        (["B(layer=L(n=1))", "B(layer=G(n=1))"], [("layer", ["L(n=1)", "G(n=1)"])]),
        (["Dense(units=16)", "Conv2D(filters=16)"], []),
        (["Dense(units=16)", None], []),
        (["Dense(units=16)", "Dense(uni… sha256:1"], []),
    ],
)
def test_what_differs(texts, found):
    assert differing_arguments(texts) == found
