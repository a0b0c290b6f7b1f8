"""Keras's own trainer and callback tests, run through `everstep.fit`: `python -m tools.keras_tests --help`."""
