"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend. A run goes through
these packages and files:

config/               typed configuration: which file, flag or override wins, how text becomes a value, misspelt keys,
                      which code a name may reach
task/                 what is learned: `Task`, ready tasks, losses and metrics, initial weights, gradients, optimizers
                      and their defaults
data/                 which source reads which data, shuffled, repeated or cut how; batches with a position; one
                      reader per format
engine/               how steps run: one file per backend, GPU and precision, what is compiled, how batches are placed
                      and shared by devices and processes
loop/                 when things happen: windows, evaluations, saves, early stopping, stages, NaN and rollbacks;
                      Keras callbacks; `trainer` keys and defaults
checkpoint/           what a run resumes from: which are complete, damaged or kept; object stores (`gs://`, `s3://`)
tracking/             what is logged: console, `history.csv`, TensorBoard, MLflow, W&B; servers that are down, points
                      that were sent
evaluation/           how good the model is, sample by sample: metrics, samples to show, files
export/               what is served: which formats, the comparison with the live model; one file per format
run/                  one run: record, lock, signals, preemption, git and packages, what a resumed run may change,
                      exit codes, removal
gang/                 the processes that train one run, and what they agree on; who is missing or frozen
report/               what a person looks at: the report, runs side by side, the model card
trained/              what a trained model is used for: predictions and their files, exports again; files that may
                      harm
reproduce/            a run repeated, and compared: the first difference and its cause
forks/                a new run that begins with a checkpoint of another one
launch/               a run in processes of their own: restarts and their pauses, several processes here, on Slurm, on
                      Ray
frontends/            compiled Keras models: `fit`, and how it differs from an experiment
cli/                  the command line, one file per command: options, defaults, what is printed
testing/              contract suites for backends, sources, trackers, formats and entry points
experiment.py         `run_experiment`: prepare, open the run, build, restore, run, finish; what each mode trains,
                      evaluates and exports
experiment_config.py  `ExperimentConfig` and `Mode`: the sections of an experiment, "unknown mode"
argument_order.py     `run_experiment` in Model Garden's order of arguments
fast_dev_run.py       `--fast-dev-run`: one batch of everything before a long run, with a save and a restore compared
                      bit for bit
errors.py             errors as data: the exit code of each kind (failed 1, bad input 2), how a message is rendered,
                      "did you mean"; which key was meant is found in config/
private_names.py      which names a user's subclass must not take
extras.py             how an extra is installed: from an index, or from the clone that this came from
redaction/            secrets: which names and texts count as one, how they are masked in files and logs
liveness.py           how another process or machine is known to be alive or dead; the lock of a run, gang/ and
                      launch/ ask
storage.py            atomic files: written under a temporary name, synced, renamed
log_lines.py          log records as plain lines
notebook.py           whether this process is a notebook's kernel; standard error is red there, so where lines go
startup_messages.py   what backends print while they start, held back
keras_internals.py    what is used of Keras's private modules
doors.py              packages whose names are loaded when they are first used
entry_points.py       what companions and other packages register; one that is missing
types.py              the types that several packages share

Companions use all of that as any package could, and can be removed:

projects/      `Training`, components (`everstep check`), flow, catalog, templates of new projects
model_garden/  Model Garden's and orbit's spellings: gin, absl flags, `StandardTrainer`
sweeps/        the same run with other values: samplers, pruning, workers
tuner/         the largest batch that fits, a range of learning rates
submit/        runs in the background, on Slurm, Ray or Kubernetes: job files, copies of the code, requeueing
recipes/       shipped experiments; backward-compatible training; KerasHub models

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
    from everstep.forks import fork
    from everstep.frontends.fit import fit
    from everstep.loop import Hook, ProgressivePolicy, ProgressiveTrainerConfig, StopAt, Trainer, TrainerConfig
    from everstep.loop.actions import EarlyStopping
    from everstep.model_garden import Controller
    from everstep.projects.training import Training
    from everstep.report import show_report
    from everstep.sweeps import sweep
    from everstep.task import ClassificationTask, CompiledTask, Task, TaskConfig, cond, value_and_grad
    from everstep.task.optim import OptimizationConfig
    from everstep.trained import load, predict


__version__ = "0.1.0"

_set_default_backend()
__getattr__, __dir__ = lazy_names(__name__, __file__)
