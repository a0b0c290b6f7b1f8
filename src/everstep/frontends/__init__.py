"""The entry points: one package for each interface that users bring from another system, all on the same loop.

compiled.py      trains a compiled Keras model; every entry point calls it
layouts.py       what each entry point calls its files
mlflow.py        the run on MLflow
verbosity.py     what `verbose` means
project_copies.py  a copy of a project, in which a run is reproduced
"""
