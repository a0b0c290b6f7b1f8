"""The commands of sweeps. The module of each is imported when it is called.

sweep.py  `everstep sweep`: its options and defaults; what TARGET means, grid or sampler
tune.py   `everstep tune`: its options and defaults (up to 65536; rates from 1e-7 to 10), advice
"""

from everstep.cli import Command, experiment_keys

SWEEP = Command("Any of these", "Try many values; run again, it resumes.", "everstep.sweeps.commands.sweep")
TUNE = Command(
    "Experiments, by their registered names",
    "Find a batch size or a learning rate; nothing is set.",
    "everstep.sweeps.commands.tune",
    experiment_keys,
)
