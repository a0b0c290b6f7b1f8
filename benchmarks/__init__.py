"""Measurements by name, beside their peers: `python -m benchmarks mlp`. `suites.py` lists them."""
