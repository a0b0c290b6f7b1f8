"""The command of sweeps. Its module is imported when it is called.

sweep.py  `everstep sweep`: its options and defaults; what TARGET means, grid or sampler
"""

from everstep.cli import Command

SWEEP = Command("Any of these", "Try many values; run again, it resumes.", "everstep.sweeps.commands.sweep")
