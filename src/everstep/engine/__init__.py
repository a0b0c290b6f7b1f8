"""Engines: how steps run on one backend. `engine.py` is what they share; a backend is one file."""
