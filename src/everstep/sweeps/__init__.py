"""Sweeps: the same run with other values, many times, until the best ones are known.

sweeping.py    `sweep`: its arguments and defaults (20 trials), directory, how many failures end it; continuing the
               best
definition.py  `sweep.json`: samplers, pruners, modes; which changes of a sweep are refused
space.py       which values may be tried: `key=1,2`, `range(…)`, ranges (log, step) and how each is
               drawn, conditions, constraints, grids
target.py      what is swept and how a trial is started; the metric where none is named; values that an experiment
               refuses
script.py      a script (`everstep sweep train.py`): values are its options, its run is in the trial's directory
study.py       which sampler draws the next values, which trial a worker takes, the pruner's rule (`create_pruner`,
               `should_prune`), the best (Optuna); storage
worker.py      runs one trial after the other: follows its metrics, stops one that is to be pruned, restarts a killed
               one (3 without progress), stores its result
executors.py   where workers run: processes on this machine, which GPU and how much of its memory each gets
clusters.py    workers on Ray and Slurm: the job file of the array
function.py    a swept function, and one trial of it: what it may return
live.py        the numbers of a trial: names of metrics (`val_loss` is `validation_loss`), the best or the last
listing.py     sweeps below a directory
page.py        the page and `trials.json`; how important each key is
parent_run.py  a sweep on MLflow: one parent run, with the runs of its trials below it
commands/      `everstep sweep`

sweeps/NAME/
  sweep.json       what is swept: target, space, metrics; a later command with another one is refused
  sweep.db         Optuna's storage, unless another one is named
  trials/0         the run directory of trial 0: a run like any other
  locks/0          held by the processes that work on trial 0; nobody holds it: the next worker resumes the trial
  logs/0.log       what the process of trial 0 wrote to standard error
  trials.json      the table of trials, for programs that do not know Optuna
  sweep.html       the page
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.sweeps import (
        executors,
        sweeping,
        target,
    )
    from everstep.sweeps.commands.sweep import sweep_choice
    from everstep.sweeps.definition import (
        PRUNERS,
        SAMPLERS,
        Definition,
    )
    from everstep.sweeps.space import (
        Space,
        Values,
        create_space,
        is_swept,
    )
    from everstep.sweeps.study import SweepStudy
    from everstep.sweeps.sweeping import sweep
    from everstep.sweeps.target import (
        Check,
        SweepChoice,
        Target,
        TargetRequest,
        register_target,
    )

FILE, TABLE, PAGE = "sweep.json", "trials.json", "sweep.html"
"""The files of a sweep's directory that other parts read."""

__getattr__, __dir__ = lazy_names(__name__, __file__)
