"""A training program as TF Model Garden's users have it: flags, gin, a strategy, a task under its scope, one call.

    KERAS_BACKEND=jax python examples/train.py --experiment=mnist/local --mode=train_and_eval --model_dir=runs/train

Only the import lines differ. `everstep train mnist/local` does all of it without a program.
"""

from everstep import experiment as train_lib
from everstep.config import registry as task_factory
from everstep.engine import mixed_precision as performance
from everstep.engine import strategy as distribute_utils
from everstep.engine.backend import prepare as init_random_seed
from everstep.model_garden import absl_program as app
from everstep.model_garden import absl_program as tfm_flags
from everstep.model_garden import absl_program as train_utils
from everstep.model_garden import gin

FLAGS = app.FLAGS


def main(_):
    init_random_seed(1)
    gin.parse_config_files_and_bindings(FLAGS.gin_file, FLAGS.gin_params)
    print(FLAGS.experiment)
    params = train_utils.parse_configuration(FLAGS)

    model_dir = FLAGS.model_dir
    if "train" in FLAGS.mode:
        # Pure eval modes do not write the file: the training job might be writing it at the same time.
        train_utils.serialize_config(params, model_dir)

    if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
    distribution_strategy = distribute_utils.get_distribution_strategy(
        distribution_strategy=params.runtime.distribution_strategy,
        all_reduce_alg=params.runtime.all_reduce_alg,
        num_gpus=params.runtime.num_gpus,
        tpu_address=params.runtime.tpu,
    )
    with distribution_strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=model_dir)

    train_lib.run_experiment(
        distribution_strategy=distribution_strategy,
        task=task,
        mode=FLAGS.mode,
        params=params,
        model_dir=model_dir,
    )


if __name__ == "__main__":
    tfm_flags.define_flags()
    app.run(main)
