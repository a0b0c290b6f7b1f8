"""Initial weights: `task.init_checkpoint`, of any origin.

`load.py` is the entry point. `find.py` determines what a path is; `keras_file.py` and `checkpoints.py` read it;
`matching.py` pairs what was found with what the model has, by name and shape. A file may come from anywhere: nothing in
it is run, nothing outside it is read, and no array is read before its shape is known to be one that the model wants.
"""
