"""The commands of sweeps. The module of each is imported when it is called.

sweep.py  `everstep sweep`
tune.py   `everstep tune`
"""

from everstep.cli import Command, experiment_keys

SWEEP = Command("Any of these", "Try many values; run again, it resumes.", "everstep.sweeps.commands.sweep")
TUNE = Command(
    "Experiments, by their registered names",
    "Find a batch size or a learning rate; nothing is set.",
    "everstep.sweeps.commands.tune",
    experiment_keys,
)
