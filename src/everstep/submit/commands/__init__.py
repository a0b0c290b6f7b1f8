"""The command of submitted runs. Its module is imported when it is called.

submit.py  `everstep submit`: its options and defaults, which executor takes which
"""

from everstep.cli import Command, experiment_keys, words_for

SUBMIT = Command(
    "Many runs, and other machines",
    "Run in the background, on Slurm or on Ray.",
    "everstep.submit.commands.submit",
    experiment_keys,
    also_typed=words_for("everstep submit EXPERIMENT", "sbatch slurm queue ray kubernetes k8s background"),
)
