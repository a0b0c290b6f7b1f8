"""The sweep that a run is a trial of, as trackers name it: the process of a trial has it in its environment."""

import os

SWEEP, TRIAL = "EVERSTEP_SWEEP", "EVERSTEP_TRIAL"
"""The variables with the sweep's name and the trial's number."""


def trial_name() -> str:
    """Returns what a trial is called on servers, `sweep-mnist-local-5f2c7a90b1 3`; empty for any other run."""
    name, number = os.environ.get(SWEEP), os.environ.get(TRIAL)
    return f"{name} {number}" if name else ""


def sweep_tags() -> dict[str, str]:
    """Returns the tags of a trial: `everstep.sweep` and `everstep.trial`; none for any other run."""
    name, number = os.environ.get(SWEEP), os.environ.get(TRIAL)
    return {"everstep.sweep": name, "everstep.trial": number or ""} if name else {}
