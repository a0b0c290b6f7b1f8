"""The command of sweeps. Its module is imported when it is called.

sweep.py  `everstep sweep`: its options and defaults; what TARGET means, grid or sampler
"""

from everstep.cli import Command, words_for

SWEEP = Command(
    "Many runs, and other machines",
    "Try many values; run again, it resumes.",
    "everstep.sweeps.commands.sweep",
    also_typed=words_for("everstep sweep EXPERIMENT KEY=1,2,3", "search hpo optuna grid hyperparameters study"),
)
