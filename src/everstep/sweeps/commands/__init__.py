"""The command of sweeps. Its module is imported when it is called.

sweep.py  `everstep sweep`
"""

from everstep.cli import Command

SWEEP = Command("Any of these", "Try many values; run again, it resumes.", "everstep.sweeps.commands.sweep")
