"""The command of sweeps. Its module is imported when it is called.

sweep.py  `everstep sweep`: its options and defaults; what TARGET means, grid or sampler
"""

from everstep.cli import Command, experiment_keys, words_for


def _swept_keys(option: str, target: str) -> list[str]:
    from everstep.config import experiments, load_entry_points

    load_entry_points()
    return experiment_keys(option, target) if target in experiments() else [option]


SWEEP = Command(
    "Many runs, and other machines",
    "Try many values; run again, it resumes.",
    "everstep.sweeps.commands.sweep",
    _swept_keys,
    also_typed=words_for("everstep sweep EXPERIMENT KEY=1,2,3", "search hpo optuna grid hyperparameters study"),
)
