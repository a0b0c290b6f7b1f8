"""What `Training` is given, looked at before anything is built from it."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.record_arguments import place, shown, whole_number
from everstep.errors import UsageError, nearest
from everstep.remote.urls import checked, is_url, refuse_lost_slash
from everstep.training.wording import NAMES, core_keys

_SEEDS = 2**32 - 1
_SECTIONS = ("task", "trainer", "runtime")  # of `config.yaml`, whose keys are as good


def checked_places(job_dir: Any, artifacts_dir: Any) -> tuple[str, str]:
    """Returns both as text.

    Raises:
      UsageError: One of them is no place to write to, or they are the same.
    """
    job, artifacts = place("job_dir", job_dir), place("artifacts_dir", artifacts_dir)
    if not job:
        raise UsageError("job_dir: received '', expected a directory of the job's own")
    for key, text in (("job_dir", job), ("artifacts_dir", artifacts)):
        refuse_lost_slash(text, key)
        if is_url(text):
            checked(text, key)
    if artifacts and os.path.normpath(job) == os.path.normpath(artifacts):
        raise UsageError(f"artifacts_dir: received {artifacts!r}, which is job_dir: name another directory")
    return job, artifacts


def checked_seed(seed: Any) -> int:
    """Returns the seed as an int; NumPy takes no other than these."""
    return whole_number("seed", seed, 0, _SEEDS)


def checked_keys(allow_change: Any) -> list[str]:
    """Returns the keys that may change, as the loop knows them; a single one need not be in a list.

    Raises:
      UsageError: They are no texts, or there is no such key.
    """
    keys = [allow_change] if isinstance(allow_change, str) else allow_change
    if not isinstance(keys, Sequence | set | frozenset) or not all(isinstance(key, str) for key in keys):
        raise UsageError(f'allow_change: received {shown(allow_change)}, expected a list of keys, such as ["data"]')
    for key in keys:
        if key.partition(".")[0] not in {*NAMES, *_SECTIONS}:
            raise UsageError(f"allow_change: there is no key {key!r}; {nearest(key, NAMES)}")
    return core_keys(keys)


def check_kinds(build_model_func: Any, use_tpu: Any, custom_objects: Any, optimizer: Any) -> None:
    """Refuses what is of another kind altogether.

    Raises:
      UsageError: Names the argument.
    """
    _check_function(build_model_func)
    if not isinstance(use_tpu, bool | np.bool_):
        raise UsageError(f"use_tpu: received {shown(use_tpu)}, expected True or False")
    if custom_objects is not None and not isinstance(custom_objects, Mapping):
        raise UsageError(f"custom_objects: received {shown(custom_objects)}, expected a dictionary of names")
    if optimizer is None:
        raise UsageError("optimizer: received None, expected an optimizer of Keras or its name")


def _check_function(build: Any) -> None:
    if not callable(build) or isinstance(build, keras.Model):
        raise UsageError(f"build_model_func: received {shown(build)}, expected a function without arguments")
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise UsageError(
            f"build_model_func: it is called without arguments, which does not fit: {error}; bind them, as in "
            "functools.partial(build_model, num_classes=10)"
        ) from None
    except ValueError:  # a function in another language says nothing of its parameters
        return
