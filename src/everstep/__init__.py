"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend. A run goes through
these packages and files:

config/               typed configuration: files, overrides, registries, allowed names
task/                 what is learned: `Task`, ready tasks, initial weights, gradients, optimizers
data/                 batches with a position: `Stream`, one file per source, one reader per format
engine/               how steps run: one file per backend, the feed, the state, devices and processes
loop/                 when things happen: trainer, controller, hooks, actions, recovery, Keras callbacks
checkpoint/           what a run resumes from: Orbax, manifest, retention, object stores
tracking/             what is logged: console, history, TensorBoard, MLflow, W&B, JSON lines
evaluation/           how good the model is, sample by sample
export/               what is served: one file per format
run/                  one run: record, lock, signals, environment, resume checks
gang/                 the processes that train one run, and what they agree on
report/               what a person looks at: the report, the model card
trained/              what a trained model is used for: predictions, exports again
reproduce/            a run repeated, and compared
launch/               a run in processes of their own: the supervisor, several processes, Slurm, Ray
frontends/            compiled Keras models: `fit`
cli/                  the command line, one file per command
testing/              contract suites for backends, sources, trackers, formats and entry points
experiment.py         `run_experiment`: prepare, open the run, build, restore, run, finish
experiment_config.py  `ExperimentConfig` and `Mode`
argument_order.py     `run_experiment` in Model Garden's order of arguments
fast_dev_run.py       one batch of everything, before a long run
errors.py             errors as data, and the wording of hints; config/ finds the key that was meant
redaction/            secrets: recognized, learned, masked
liveness.py           how another process is known to be alive; the lock of a run, gang/ and launch/ ask
storage.py            atomic files
log_lines.py          log records as plain lines
startup_messages.py   what backends print while they start, held back
keras_internals.py    what is used of Keras's private modules
doors.py              packages whose names are loaded when they are first used
entry_points.py       what companions and other packages register
types.py              the types that several packages share

Companions use all of that as any package could, and can be removed:

projects/             `Training`, components, flow, catalog, templates of new projects
model_garden/         Model Garden's and orbit's spellings
sweeps/               the same run with other values
tuner/                the largest batch that fits, a range of learning rates
submit/               runs in the background, on Slurm, Ray or Kubernetes
recipes/              shipped experiments; backward-compatible training; KerasHub models

The other files list public names: actions.py, bct.py, catalog.py, components.py, flow.py, multitask.py, optim.py,
training.py; __main__.py is `python -m everstep`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names
from everstep.engine import set_default_backend as _set_default_backend

if TYPE_CHECKING:
    from everstep.config import Config, OneOfConfig, get_exp_config, get_task, register_experiment, register_task
    from everstep.data import DataConfig, Stream, get_labels, get_tfrecord_dataset, get_train_ds, get_valid_ds
    from everstep.engine import RuntimeConfig, get_distribution_strategy
    from everstep.errors import TrainingError, UsageError
    from everstep.experiment import run_experiment
    from everstep.experiment_config import ExperimentConfig, Mode
    from everstep.frontends.fit import fit
    from everstep.loop import Hook, ProgressivePolicy, ProgressiveTrainerConfig, StopAt, Trainer, TrainerConfig
    from everstep.loop.actions import EarlyStopping
    from everstep.model_garden import Controller
    from everstep.projects.training import Training
    from everstep.sweeps import sweep
    from everstep.task import ClassificationTask, CompiledTask, Task, TaskConfig, cond, value_and_grad
    from everstep.task.optim import OptimizationConfig
    from everstep.trained import predict


__version__ = "0.1.0"

_set_default_backend()
__getattr__, __dir__ = lazy_names(__name__, __file__)
