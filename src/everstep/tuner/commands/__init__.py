"""The command of the tuner. Its module is imported when it is called.

tune.py  `everstep tune`: its options and defaults (up to 65536; rates from 1e-7 to 10), advice
"""

from everstep.cli import Command, experiment_keys, words_for

TUNE = Command(
    "Registered experiments",
    "Find a batch size or a learning rate; nothing is set.",
    "everstep.tuner.commands.tune",
    experiment_keys,
    also_typed={
        **words_for("everstep tune learning-rate EXPERIMENT", "lr-find lr_find find-lr learning-rate"),
        **words_for("everstep tune batch-size EXPERIMENT", "batch-size batch_size scale-batch-size"),
    },
)
