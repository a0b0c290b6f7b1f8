"""The engine contract of `everstep.testing`, on the configured backend."""

import pytest

from everstep.engine.backend import create_engine
from everstep.testing import engines, models
from everstep.testing.engines.device_data import check_same_bits_from_the_device
from everstep.testing.engines.running import check_same_bits_for_every_split
from everstep.testing.engines.state import OPTIMIZERS, check_every_optimizer_has_keys

pytestmark = [
    pytest.mark.backend,
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),  # PyTorch on a GPU
]


# What is refused, half precision and evaluations hardly depend on how steps are compiled.
TWICE = [*engines.refusals.CHECKS, *engines.precision.CHECKS, *engines.evaluation.CHECKS]
DAILY = [
    pytest.param(check, marks=pytest.mark.daily("torch", "jax")) if check in TWICE else check
    for check in engines.CHECKS
]


@pytest.mark.parametrize("check", DAILY, ids=lambda check: check.__name__.removeprefix("check_"))
def test_engine(check):
    check(create_engine)


# On JAX a transformer compiles for 14 seconds; the other models take the same path.
SPLIT = [*list(models.MODELS)[:-1], pytest.param("transformer", marks=pytest.mark.daily("torch", "tensorflow"))]


@pytest.mark.parametrize("kind", SPLIT)
def test_same_bits_for_every_split(kind):
    check_same_bits_for_every_split(create_engine, kind)


# Gathering does not depend on the model: one of them is enough elsewhere.
KINDS = ["mlp", *(pytest.param(kind, marks=pytest.mark.daily("torch")) for kind in ("cnn", "gru", "transformer"))]


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_from_the_device(kind):
    check_same_bits_from_the_device(create_engine, kind)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_keys(name):
    check_every_optimizer_has_keys(create_engine, name)
