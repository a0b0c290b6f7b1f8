"""Initial weights from `task.init_checkpoint`, in any supported format.

`load.py` is the entry point. `find.py` determines what a path is; `keras_file.py` and `checkpoints.py` read it;
`matching.py` pairs the arrays of the file with the weights of the model, by name and shape. Files are not trusted:
nothing in a file is run, nothing outside it is read, and no array is read before its shape is known to match a weight.
"""
