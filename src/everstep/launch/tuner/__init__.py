"""Short trials before a long run.

`dev_run.py` runs one batch of everything. `batch_size.py` searches the largest batch that fits, `learning_rate.py`
evaluates a range of learning rates; both need no Keras. `trials.py` trains the few steps that they judge.
"""
