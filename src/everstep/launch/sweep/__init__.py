"""Sweeps: the same run with other values, many times, until the best ones are known.

`space.py` says which values may be tried, `target.py` how a run with them is started, `study.py` which ones come next
(Optuna), `worker.py` runs one trial after the other, `sweeping.py` starts the workers and waits, `page.py` draws.

sweeps/NAME/
  sweep.json       what is swept: target, space, metrics; a later command with another one is refused
  sweep.db         Optuna's storage, unless another one is named
  trials/0         the run directory of trial 0: a run like any other
  locks/0          held by the processes that work on trial 0; nobody holds it: the next worker resumes the trial
  logs/0.log       what the process of trial 0 wrote to standard error
  trials.json      the table of trials, for programs that do not know Optuna
  sweep.html       the page
"""

FILE, TABLE, PAGE = "sweep.json", "trials.json", "sweep.html"
"""The files of a sweep's directory that other parts read."""
