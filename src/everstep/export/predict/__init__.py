"""Predictions of a trained model on new data, in batches and in constant memory.

`finding.py` finds the model that a name stands for; `models.py` loads models that somebody else may have written,
without running their code; `inputs.py` opens data of many kinds; `predicting.py` runs the model over them;
`outputs.py` turns its outputs into rows of a file.
"""
