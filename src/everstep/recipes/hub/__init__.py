"""Experiments with KerasHub models: `hub/causal_lm`, `hub/text_classifier`, `hub/image_classifier`.

Imports no Keras.
"""
