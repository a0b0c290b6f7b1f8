"""The command of submitted runs. Its module is imported when it is called.

submit.py  `everstep submit`: its options and defaults, which executor takes which
"""

from everstep.cli import Command, experiment_keys

SUBMIT = Command(
    "Any of these", "Run in the background, on Slurm or on Ray.", "everstep.submit.commands.submit", experiment_keys
)
