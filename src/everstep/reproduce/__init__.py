"""Reproduce: a run is repeated from its record, and compared with it bit by bit.

reproducing.py  `reproduce`: how often it repeats a run, which code, which step; what is refused; the verdict
repetition.py   the command that repeats a run, its code checked out again, its environment; "cannot be repeated"; of
                flows and components: `projects/repetitions.py`
programs.py     runs that a user's script has started: the script again, with another directory
evidence.py     what a run has left on disk: record, configuration, numbers (without times), weights
comparison.py   the first difference of two runs, bit for bit, without a tolerance, and what explains it: seed,
                configuration, data, code, packages, hardware, in this order
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.reproduce.evidence import (
        Evidence,
        examine,
        stored_config,
    )
    from everstep.reproduce.programs import ProgramRuns
    from everstep.reproduce.repetition import (
        NotRepeatable,
        Repetition,
        register_repeatable,
    )
    from everstep.reproduce.reproducing import (
        compare_runs,
        reproduce,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
