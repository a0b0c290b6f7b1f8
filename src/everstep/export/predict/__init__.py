"""Predict: a trained model is asked about new data, in batches, in constant memory.

`finding.py` knows what a name means; `models.py` loads models that somebody else may have
written; `inputs.py` opens data of many kinds; `answers.py` makes rows of what a model says, `writing.py` files of them.
"""
