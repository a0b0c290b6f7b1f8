"""The environment of the process that talks to Weights & Biases."""

import os

# What is said here and nowhere else: nothing of W&B's own on the screen, no reports of errors to its makers.
_SETTINGS = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}

# Of another run that this process may be a part of.
_NOT_OURS = ("WANDB_SERVICE", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_SWEEP_ID")


def environment() -> dict[str, str]:
    """Returns this process's variables, with those that W&B is to find."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS} | _SETTINGS
