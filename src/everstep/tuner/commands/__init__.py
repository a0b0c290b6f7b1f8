"""The command of the tuner. Its module is imported when it is called.

tune.py  `everstep tune`: its options and defaults (up to 65536; rates from 1e-7 to 10), advice
"""

from everstep.cli import Command, experiment_keys

TUNE = Command(
    "Experiments, by their registered names",
    "Find a batch size or a learning rate; nothing is set.",
    "everstep.tuner.commands.tune",
    experiment_keys,
)
