"""Processes: starting a run, and starting it again.

`supervisor.py` decides; `child.py` is the running command, `forwarding.py` what reaches it, `passing.py` what it says,
`death.py` how it ended, `progress.py` what it had kept by then.
"""
