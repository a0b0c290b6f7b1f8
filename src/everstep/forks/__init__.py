"""Fork: a new run that begins with the exact state of another one at a step.

forking.py      `fork`: which checkpoint a new run begins with, and what it takes over of the record and the history;
                a step without a checkpoint
forked_run.py   the command that trains a fork: the experiment with other values, or the program again; a refused fork
                leaves nothing behind
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.forks.forked_run import train_fork
    from everstep.forks.forking import fork

__getattr__, __dir__ = lazy_names(__name__, __file__)
