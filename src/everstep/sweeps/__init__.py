"""Sweeps: the same run with other values, many times, until the best ones are known.

sweeping.py    `sweep`: opens the study, starts the workers, waits
definition.py  `sweep.json`: what is swept
space.py       which values may be tried
target.py      how a run with them is started; what other packages register
study.py       which values come next, and which trials are pruned (Optuna)
worker.py      runs one trial after the other
executors.py   where workers run
clusters.py    workers on Ray and Slurm
function.py    a swept function, and one trial of it
live.py        the numbers of a trial
listing.py     sweeps below a directory
page.py        the page
parent_run.py  a sweep on MLflow
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
