"""The command of the tuner. Its module is imported when it is called.

tune.py  `everstep tune`
"""

from everstep.cli import Command, experiment_keys

TUNE = Command(
    "Experiments, by their registered names",
    "Find a batch size or a learning rate; nothing is set.",
    "everstep.tuner.commands.tune",
    experiment_keys,
)
