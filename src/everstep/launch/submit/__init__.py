"""Submitting a run: its code and config file are copied, and an executor is given a job that trains from the copies.

`request.py` is what the user submits, `snapshot.py` the copies. `background.py`, `slurm.py` and `ray.py` are the
executors; `job.py` is the program that they run. `kubernetes.py` only writes a manifest. `submissions.py` and
`overview.py` report the state of submitted runs.
"""
