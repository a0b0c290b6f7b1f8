"""The contract of an `Engine`, as checks for any implementation.

    @pytest.mark.parametrize("check", engines.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(create_engine)

Each check takes a function that creates the engine from a task, a model and an optimizer, and runs on the backend of
the process.

running.py      how steps run: same bits for every split into calls, few compilations, stops, errors
steps.py        what a step computes: losses, weights, accumulation, metrics
state.py        how the state moves: keys, types, push and pull
refusals.py     what an engine must refuse
precision.py    half precision, loss scaling
evaluation.py   every sample counts once, outputs on the host
device_data.py  data on the device: the same bits as from the host
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
