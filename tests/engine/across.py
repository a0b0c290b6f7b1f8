"""Trains small models on one backend: `across.py OUT [IN]`, run by `test_across.py`, which sets KERAS_BACKEND.

For each model, writes to OUT the state before training, the losses of 100 steps and the state after them. With IN, the
output of another backend, training starts from the states in it.
"""

import sys

import keras
import numpy as np

from everstep.engine.backend import create_engine
from everstep.testing import models
from everstep.testing.engines.state import holding_much, many_parts
from everstep.testing.tasks import Regression, running, seeded

STEPS = 100


def train(kind, start):
    model = seeded(lambda: models.MODELS[kind](dropout=0.0))
    with running(create_engine, Regression(), model, keras.optimizers.Adam(1e-3)) as rig:
        if start:
            rig.engine.load(start)
        before, losses = rig.engine.state(), []
        for _ in range(STEPS):
            rig.engine.reset("train")
            rig.run(1)
            losses.append(rig.engine.read("train")["loss"])
        return {"losses": np.array(losses), **_under("before", before), **_under("after", rig.engine.state())}


def state_before(start):
    with running(create_engine, holding_much(), seeded(many_parts)) as rig:
        if start:
            rig.engine.load(start)
        return _under("before", rig.engine.state())


def _under(name, state):
    return {f"{name}|{key}": value for key, value in state.items()}


def starts(path, kind):
    with np.load(path) as arrays:
        return {key.split("|")[2]: arrays[key] for key in arrays if key.startswith(f"{kind}|before|")}


def main(out, given=None):
    results = {}
    for kind in (*models.MODELS, "held"):
        start = starts(given, kind) if given else None
        result = state_before(start) if kind == "held" else train(kind, start)
        results |= {f"{kind}|{name}": value for name, value in result.items()}
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
