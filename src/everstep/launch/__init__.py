"""Starting runs in processes of their own.

`supervisor.py` restarts a command that dies: `child.py` is the running command, `progress.py` what its run has saved.
`submit/` hands a run to the background, Slurm or Ray; `tuner/` has short trials before a long run.
"""
