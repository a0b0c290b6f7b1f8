"""Measurements, each a script that prints its figures: `python -m benchmarks loop`."""
