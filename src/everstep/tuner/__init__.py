"""The largest batch that fits, and a learning rate: short trials before a long run; nothing is set.

batch_size.py     the largest batch that fits: which sizes are tried, what counts as out of memory, memory limits
learning_rate.py  where the loss falls fastest, when it counts as diverged, the picture
trials.py         the few steps that they judge
commands/         `everstep tune`
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.tuner.batch_size import (
        KEY,
        Tried,
        end_with_parent,
        fastest,
        free_bytes,
        gigabytes,
        largest,
        search,
        try_in_subprocess,
    )
    from everstep.tuner.learning_rate import (
        RangeTest,
        draw,
        require_matplotlib,
        rounded,
    )
    from everstep.tuner.trials import (
        range_test,
        try_size,
        with_size,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
