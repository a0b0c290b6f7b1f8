"""The model, compiled and ready to be trained."""

import keras

from everstep.components import ModelBuilderBase


class ModelBuilder(ModelBuilderBase):
    def get_compiled_model(self):
        model = keras.Sequential(
            [
                keras.Input((self.input_h * self.input_w,)),
                keras.layers.Dense(self.n_filters, activation=self.activation),
                keras.layers.Dropout(self.dropout_rate),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            optimizer="adam",
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=False),  # they are probabilities already
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        return model

    def _load_params(self, config):
        m_config = config.model_builder
        self.activation = m_config.activation
        self.n_filters = m_config.n_filters
        self.dropout_rate = m_config.dropout_rate
        self.input_h = config.input_height
        self.input_w = config.input_width

    def _set_defaults(self):
        self.activation = "relu"
        self.n_filters = 512
        self.dropout_rate = 0.2
        self.input_h = 28
        self.input_w = 28
