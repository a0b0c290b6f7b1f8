"""The seed of a `fit` that was given none."""

import hashlib
import json
from pathlib import Path
from typing import Any

from keras.src.backend.common import global_state
from keras.src.utils import rng_utils

from everstep.loop import random_state
from everstep.run.changes import stored_seed


class _CountedSeed(int):
    """What was given to `keras.utils.set_random_seed`, with what has happened since; seeding again replaces it."""


def choose_seed(directory: Path | None) -> int:
    """Returns the seed of the run in a directory; for a new run, and without a directory, another one at each call.

    It follows from the global random generators and from the number of calls since they were seeded, so that
    `keras.utils.set_random_seed` makes a program repeatable; no number is drawn from them.
    """
    if directory is not None and (stored := stored_seed(directory)) is not None:
        return stored
    state = hashlib.sha256(json.dumps(random_state.get()).encode())
    state.update(_calls(state.hexdigest()).to_bytes(8, "big"))
    return int.from_bytes(state.digest()[:4], "big") >> 1


_last: dict[str, Any] = {"state": "", "calls": 0}


def _calls(state: str) -> int:
    """Returns how many calls there were with the generators as they are now, since Keras was seeded."""
    seed = rng_utils.get_random_seed()
    seeded = seed is not None and not isinstance(seed, _CountedSeed)
    if seeded:
        global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, _CountedSeed(seed))
    _last["calls"] = 0 if seeded or state != _last["state"] else _last["calls"] + 1
    _last["state"] = state
    return int(_last["calls"])
