"""Engines: how steps run on one backend. `engine.py` holds what all backends share; each backend is one file."""
