"""The configuration of a run: as `config.yaml` has it, and as its newest checkpoint was trained with it."""

from collections.abc import Mapping
from typing import Any

from everstep.checkpoint import Checkpointer
from everstep.config import Change, Config, dialect
from everstep.loop import saved_parts
from everstep.run.attempt import Attempt
from everstep.run.record import Run
from everstep.run.resume_checks import accepted_changes, check_keys


def config_text(params: Config, header: Mapping[str, Any]) -> str:
    """Returns the text of `config.yaml`, which repeats the run; without secrets."""
    return dialect.dump_without_secrets({**header, **params.as_dict()})


def trained_config(meta: Mapping[str, Any]) -> str:
    """Returns the configuration that a checkpoint was trained with, from its meta; empty if it is unknown."""
    return str(saved_parts(meta).get(Attempt.name, {}).get("config", ""))


def changes_since_newest(
    checkpointer: Checkpointer, run: Run, params: Config, allow_change: list[str], gin: str
) -> list[Change]:
    """Returns the changes since the newest checkpoint was trained.

    Args:
      checkpointer: The run's checkpoints.
      run: The run.
      params: The configuration now.
      allow_change: Keys that may change although they alter what the run computes.
      gin: The gin bindings now.

    Raises:
      ChangeRefused: Other changes alter what the run computes.
    """
    if checkpointer.latest() is None:
        check_keys(run.directory, params, allow_change)
        return []
    return accepted_changes(run.directory, params, allow_change, gin, trained_config(checkpointer.newest_meta()))
