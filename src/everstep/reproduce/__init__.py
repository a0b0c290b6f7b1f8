"""Reproduce: a run is repeated from its record, and compared with it bit by bit.

reproducing.py  `reproduce`: repeats, compares, and gives a verdict
repetition.py   the repetition, in a process of its own
evidence.py     what a run has left on disk
comparison.py   the first difference, and what explains it
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.reproduce.evidence import (
        Evidence,
        stored_config,
    )
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
