"""One run: its directory, its record, and the process that trains in it.

`record.py` writes `run.json`, `digest.py`, `environment.py`, `cost.py` and `goodput.py` compute what it contains;
`attempt.py`, `lock.py`, `signals.py` and `preemption.py` are about the process; `resume_checks.py` compares two
attempts; `checkpoint_selection.py` finds checkpoints; `removal.py` removes runs; `reproduce/` repeats them.
"""
