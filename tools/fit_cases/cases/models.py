"""Models: how they are built, and small ones of the kinds that people train."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops
from tools.fit_cases import rows
from tools.fit_cases.case import SAMPLES, WIDTH, X, Y, call, case, compiled, labels, numbers, regression, stack, tokens

# -- how they are built ------------------------------------------------------------------------------------------------


@case("models", "functional, two inputs and two outputs", differs={"tensorflow": rows.OUTPUTS})
def two_by_two():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    both = layers.Concatenate()([a, b])
    model = keras.Model([a, b], [layers.Dense(1, name="number")(both), layers.Dense(3, "softmax", name="kind")(both)])
    loss = ["mse", "sparse_categorical_crossentropy"]
    compiled(model, loss=loss, loss_weights=[1.0, 0.3], metrics=[["mae"], ["accuracy"]])
    return call(model, [X, numbers(SAMPLES, 3)], [Y, labels(SAMPLES, 3)], validation_split=0.25)


@case("models", "functional, dicts of inputs and outputs")
def dicts():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    both = layers.Concatenate()([a, b])
    outputs = {"number": layers.Dense(1)(both), "kind": layers.Dense(3, "softmax")(both)}
    model = keras.Model({"a": a, "b": b}, outputs)
    losses = {"number": "mse", "kind": "sparse_categorical_crossentropy"}
    compiled(model, loss=losses, loss_weights={"number": 2.0, "kind": 0.5}, metrics={"kind": ["accuracy"]})
    return call(model, {"a": X, "b": numbers(SAMPLES, 3)}, {"number": Y, "kind": labels(SAMPLES, 3)})


@case("models", "an output without a loss")
def output_without_loss():
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, name="hidden")(inputs)
    model = keras.Model(inputs, {"number": layers.Dense(1)(hidden), "hidden": hidden})
    return call(compiled(model, loss={"number": "mse", "hidden": None}), X, {"number": Y, "hidden": X[:, :3]})


@case("models", "residual, with shared layers")
def shared_layers():
    inputs, dense = keras.Input((4,)), layers.Dense(4, "tanh")
    model = keras.Model(inputs, layers.Dense(1)(layers.Add()([inputs, dense(dense(inputs))])))
    return call(compiled(model), X, Y)


@case("models", "a model in a model, one part frozen")
def nested():
    backbone = stack((4,), layers.Dense(6, "relu"), layers.BatchNormalization())
    backbone.trainable = False
    return call(compiled(stack((4,), backbone, layers.Dense(1))), X, Y)


class Subclassed(keras.Model):
    """Is built by its first batch, and behaves differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.normal, self.out = layers.Dense(6, "relu"), layers.BatchNormalization(), layers.Dense(1)

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Returns one number a sample."""
        return self.out(self.normal(self.hidden(inputs), training=training))


@case("models", "a subclass, built by its data")
def subclassed():
    return call(compiled(Subclassed(), metrics=["mae"]), X, Y, validation_split=0.25)


@case("models", "Sequential, built by its data")
def unbuilt_sequential():
    return call(compiled(keras.Sequential([layers.Dense(6, "relu"), layers.Dense(1)])), X, Y)


@case("models", "saved and loaded")
def loaded():
    import tempfile
    from pathlib import Path

    model = regression(metrics=["mae"])
    model.fit(X, Y, epochs=1, batch_size=8, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        return call(keras.models.load_model(Path(folder) / "model.keras"), X, Y)


@case("models", "cloned")
def cloned():
    return call(compiled(keras.models.clone_model(regression())), X, Y)


# -- kinds that people train -------------------------------------------------------------------------------------------

IMAGES, KINDS = numbers(SAMPLES, 8, 8, 1), labels(SAMPLES, 10)
TEXTS = tokens(SAMPLES, 7, 12)


def _crossentropy(model: keras.Model, **kwargs: Any) -> keras.Model:
    return compiled(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"], **kwargs)


@case("programs", "digits, a convolutional network", differs={"torch": rows.DROPOUT})
def digits():
    hidden = [layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.5)]
    model = _crossentropy(stack((8, 8, 1), *hidden, layers.Dense(10, "softmax")))
    return call(model, IMAGES, KINDS, validation_split=0.1)


@case("programs", "images, residual blocks")
def residual_images():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(2):
        y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(layers.ReLU()(x)))
        x = layers.Add()([x, y])
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)))
    return call(_crossentropy(model, optimizer=keras.optimizers.SGD(0.05, momentum=0.9)), IMAGES, KINDS)


@case("programs", "images, segmentation")
def segmentation():
    inputs = keras.Input((8, 8, 1))
    down = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    up = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(down)
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(layers.Concatenate()([inputs, up])))
    compiled(model, loss="binary_crossentropy", metrics=[keras.metrics.BinaryIoU()])
    return call(model, IMAGES, (IMAGES > 0.3).astype("float32"))


@case("programs", "images, a vision transformer")
def vision_transformer():
    inputs = keras.Input((8, 8, 1))
    x = layers.Reshape((16, 6))(layers.Conv2D(6, 2, strides=2)(inputs))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x))
    x = x + layers.Dense(6)(layers.Dense(12, "gelu")(x))
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))
    return call(_crossentropy(model, optimizer=keras.optimizers.AdamW(0.01)), IMAGES, KINDS)


@case("programs", "images, an MLP mixer")
def mixer():
    inputs = keras.Input((4, 6))
    x = layers.LayerNormalization()(inputs)
    x = x + layers.Permute((2, 1))(layers.Dense(4, "gelu")(layers.Permute((2, 1))(x)))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(x)))
    return call(_crossentropy(model), numbers(SAMPLES, 4, 6), labels(SAMPLES, 3))


@case("programs", "images, an autoencoder")
def autoencoder():
    encoder = [layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")]
    decoder = [layers.Conv2DTranspose(4, 3, strides=2, padding="same"), layers.Conv2D(1, 3, padding="same")]
    return call(compiled(stack((8, 8, 1), *encoder, *decoder)), IMAGES, IMAGES, validation_data=(IMAGES, IMAGES))


@case("programs", "texts, a bidirectional LSTM", differs={"tensorflow": rows.EMBEDDINGS})
def text_lstm():
    hidden = [layers.Embedding(12, 4), layers.Bidirectional(layers.LSTM(3)), layers.Dense(1, "sigmoid")]
    model = compiled(stack((7,), *hidden, dtype="int32"), loss="binary_crossentropy", metrics=["accuracy"])
    return call(model, TEXTS, labels(SAMPLES, 2), validation_split=0.2)


@case("programs", "texts, a convolutional network", differs={"tensorflow": rows.EMBEDDINGS})
def text_convolutions():
    hidden = [layers.Embedding(12, 4), layers.Conv1D(4, 3, activation="relu"), layers.GlobalMaxPooling1D()]
    return call(
        _crossentropy(stack((7,), *hidden, layers.Dense(2, "softmax"), dtype="int32")), TEXTS, labels(SAMPLES, 2)
    )


@case("programs", "texts, a transformer block", differs={"tensorflow": rows.EMBEDDINGS})
def text_transformer():
    inputs = keras.Input((7,), dtype="int32")
    places = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    x = layers.Embedding(12, 6)(inputs) + layers.Embedding(7, 6)(places)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.GlobalAveragePooling1D()(x)))
    return call(_crossentropy(model), TEXTS, labels(SAMPLES, 2))


@case("programs", "texts, a causal language model", differs={"tensorflow": rows.EMBEDDINGS})
def language_model():
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(12, 6)(inputs)
    x = x + layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    model = compiled(
        keras.Model(inputs, layers.Dense(12)(x)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    )
    return call(model, TEXTS, np.roll(TEXTS, -1, axis=1))


class Experts(layers.Layer):
    """Sends each token to one of several experts, as keras.io's Switch Transformer does.

    The router draws noise without a seed, which Keras refuses on JAX, and adds a loss.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count, self.route = count, layers.Dense(count)
        self.experts = [keras.Sequential([layers.Dense(8, "relu"), layers.Dense(width)]) for _ in range(count)]

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Returns for each token what its expert makes of it."""
        width = inputs.shape[-1]
        rows = ops.reshape(inputs, (-1, width))
        logits = self.route(rows)
        if training:
            logits += keras.random.uniform((self.count,), 0.9, 1.1)
        probabilities = ops.softmax(logits)
        gate, chosen = ops.top_k(probabilities, k=1)
        mask = ops.one_hot(ops.squeeze(chosen, 1), self.count)
        self.add_loss(self.count * ops.mean(ops.mean(mask, axis=0) * ops.mean(probabilities, axis=0)))
        given = ops.unstack(ops.einsum("td,te->etd", rows, mask), axis=0)
        made = ops.stack([expert(one) for expert, one in zip(self.experts, given, strict=True)], axis=1)
        return ops.reshape(ops.einsum("ted,te->td", made, gate * mask), (-1, *inputs.shape[1:]))


@case("programs", "texts, a mixture of experts")
def mixture_of_experts():
    inputs = keras.Input((7, 6))
    x = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(2, 3)(inputs, inputs))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x + Experts(3, 6)(x)))
    model = _crossentropy(keras.Model(inputs, layers.Dense(2, "softmax")(x)), optimizer="sgd")
    return call(model, numbers(SAMPLES, 7, 6), labels(SAMPLES, 2), validation_split=0.2)


@case("programs", "sequence to sequence, LSTM")
def sequence_to_sequence():
    source, target = keras.Input((5, 6)), keras.Input((4, 6))
    _, *state = layers.LSTM(4, return_state=True)(source)
    decoded = layers.LSTM(4, return_sequences=True)(target, initial_state=state)
    model = keras.Model([source, target], layers.Dense(6, "softmax")(decoded))
    words = np.eye(6, dtype="float32")[tokens(SAMPLES, 5, 6)]
    compiled(model, "rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    return call(model, [words, words[:, :4]], words[:, 1:], validation_split=0.2)


@case("programs", "addition, RNN")
def addition():
    hidden = [layers.LSTM(6), layers.RepeatVector(3), layers.LSTM(6, return_sequences=True)]
    model = stack((5, 6), *hidden, layers.Dense(6, "softmax"))
    words = np.eye(6, dtype="float32")[tokens(SAMPLES, 5, 6)]
    return call(compiled(model, loss="categorical_crossentropy", metrics=["accuracy"]), words, words[:, :3])


@case("programs", "time series, forecasts by GRU")
def forecasts():
    model = stack((10, 2), layers.GRU(6), layers.Dense(3))
    compiled(model, keras.optimizers.Adam(0.01), "huber", metrics=["mae"])
    return call(model, numbers(SAMPLES, 10, 2), numbers(SAMPLES, 3), validation_split=0.25)


@case("programs", "time series, a fully convolutional network", differs={"tensorflow": rows.ROUNDING})
def time_series_network():
    blocks = [
        layer
        for _ in range(3)
        for layer in (layers.Conv1D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU())
    ]
    model = stack((10, 1), *blocks, layers.GlobalAveragePooling1D(), layers.Dense(2, "softmax"))
    return call(_crossentropy(model), numbers(SAMPLES, 10, 1), labels(SAMPLES, 2), validation_split=0.2)


@case("programs", "tables, wide and deep")
def wide_and_deep():
    wide, deep = keras.Input((3,)), keras.Input((WIDTH,))
    hidden = layers.Dense(6, "relu")(layers.Dense(6, "relu")(deep))
    model = keras.Model([wide, deep], layers.Dense(1, "sigmoid")(layers.Concatenate()([wide, hidden])))
    compiled(model, loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    return call(model, [numbers(SAMPLES, 3), X], labels(SAMPLES, 2), class_weight={0: 1.0, 1: 3.0})


@case("programs", "tables, a categorical column and numbers", differs={"tensorflow": rows.EMBEDDINGS})
def categorical_column():
    kind, rest = keras.Input((1,), dtype="int32"), keras.Input((WIDTH,))
    joined = layers.Concatenate()([layers.Flatten()(layers.Embedding(5, 3)(kind)), rest])
    model = keras.Model([kind, rest], layers.Dense(1)(layers.Dense(6, "relu")(joined)))
    return call(compiled(model), [labels(SAMPLES, 5)[:, None], X], Y)


@case("programs", "ratings, matrix factorization", differs={"tensorflow": rows.EMBEDDINGS})
def ratings():
    user, film = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    score = layers.Dot(1)([layers.Embedding(6, 3)(user), layers.Embedding(8, 3)(film)])
    return call(compiled(keras.Model([user, film], score)), [labels(SAMPLES, 6), labels(SAMPLES, 8)], Y)


@case("programs", "pairs, siamese")
def siamese():
    first, second = keras.Input((WIDTH,)), keras.Input((WIDTH,))
    embed = stack((WIDTH,), layers.Dense(6, "relu"), layers.Dense(2))
    distance = ops.sqrt(ops.sum((embed(first) - embed(second)) ** 2, axis=1, keepdims=True) + 1e-6)
    model = keras.Model([first, second], layers.Dense(1, "sigmoid")(distance))
    return call(compiled(model, loss="binary_crossentropy"), [X, X[::-1].copy()], labels(SAMPLES, 2))


@case("programs", "fine-tuning: frozen, then all")
def fine_tuning():
    backbone = stack((WIDTH,), layers.Dense(6, "relu"), layers.BatchNormalization())
    backbone.trainable = False
    made = call(compiled(stack((WIDTH,), backbone, layers.Dense(1))), X, Y)

    def earlier(fit: Any) -> None:
        fit(made.model, X, Y, **made.kwargs)
        backbone.trainable = True
        compiled(made.model, keras.optimizers.Adam(1e-4))

    made.before = earlier
    return made
