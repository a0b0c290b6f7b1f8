"""Resume: the state of a run on disk, complete or invisible.

`checkpointer.py` has the interface; `orbax.py` the one that writes.
"""
