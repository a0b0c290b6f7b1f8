"""An entry point: `learn(model, x, y, "runs/a", rounds=3)` trains a compiled model.

The same call resumes.
"""

import everstep
from everstep.errors import renamed_keys

NAMES = {
    "trainer.epochs": "rounds",
    "trainer.train_steps": "rounds",
    "task.train_data": "x",
    "task.train_data.global_batch_size": "batch_size",
    "runtime.seed": "seed",
    "trainer": None,
    "runtime": None,
}
"""What its users call the keys of a configuration. None: they cannot set it."""


def learn(model, x, y, directory, rounds=3, batch_size=32, seed=0, actions=()):
    """Trains for so many rounds over the data, and returns the last evaluation.

    It evaluates and saves after each.

    Args:
      model: A compiled Keras model.
      x: Inputs.
      y: Labels.
      directory: The run directory.
      rounds: Passes over the data.
      batch_size: Samples of a step.
      seed: Decides everything random.
      actions: Called with the logs of each round.
    """
    with renamed_keys(NAMES):
        for name, value in (("rounds", rounds), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise everstep.UsageError(
                    "must be a whole number of at least 1", key=name, received=value
                )
        params = everstep.ExperimentConfig(runtime=everstep.RuntimeConfig(seed=seed))
        params.task.train_data.global_batch_size = (
            params.task.validation_data.global_batch_size
        ) = batch_size
        steps = -(-len(x) // batch_size)
        intervals = dict.fromkeys(
            ("steps_per_loop", "validation_interval", "checkpoint_interval"), steps
        )
        params.override({"trainer": {"epochs": rounds, **intervals}})
        task = everstep.CompiledTask(model, (x, y), (x, y), params.task)
        _, logs = everstep.run_experiment(
            task, params, directory, train_actions=actions, export=False, verbose=False
        )
        return logs
