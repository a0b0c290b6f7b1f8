"""Weights to start from: `task.init_checkpoint`, whoever wrote it.

`load.py` is the way in. `find.py` tells what lies under a path; `keras_file.py`, `tf_checkpoint.py` and
`run_checkpoint.py` read it; `matching.py` pairs what was found with what the model has, `names.py` says under which
names. A file may come from anywhere: nothing in it is run, nothing outside it is read, and no array is read before its
shape is known to be one that the model wants.
"""
