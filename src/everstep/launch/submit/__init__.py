"""Submitting a run: what it consists of is copied, and a queue is asked to run it.

`request.py` is what the user wants; `snapshot.py` copies it (`sources.py` the code, `data_files.py` a fingerprint of
the data); `background.py`, `slurm.py` and `on_ray.py` hand it to an engine; `job.py` is what the engine runs;
`submissions.py` and `overview.py` tell afterwards how far it has come.
"""
