"""The contract of an `Engine`, as checks for any implementation.

    @pytest.mark.parametrize("check", engines.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(create_engine)

Each check takes a function that creates the engine from a task, a model and an optimizer, and runs on the backend of
the process.

running.py      how steps run
steps.py        what a step computes
state.py        how the state moves
refusals.py     what an engine must refuse
precision.py    half precision
evaluation.py   evaluation
device_data.py  data on the device
"""

from collections.abc import Callable

from everstep.testing.engines import device_data, evaluation, precision, refusals, running, state, steps
from everstep.testing.tasks import Make

CHECKS: list[Callable[[Make], None]] = [
    *running.CHECKS,
    *steps.CHECKS,
    *state.CHECKS,
    *refusals.CHECKS,
    *precision.CHECKS,
    *evaluation.CHECKS,
    *device_data.CHECKS,
]
"""Every check of the contract."""
