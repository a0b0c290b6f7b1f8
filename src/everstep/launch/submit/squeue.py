"""Asking Slurm: its programs, and which jobs are in its queue."""

import getpass
import subprocess

from everstep.errors import UsageError

_SECONDS = 60.0


def jobs() -> dict[str, str]:
    """Returns the user's jobs that are queued or running, with their states: `{"123": "PENDING"}`.

    Raises:
      UsageError: There is no Slurm, or it does not answer.
    """
    lines = asked("squeue", "--noheader", "--user", getpass.getuser(), "--format", "%i %T").splitlines()
    return {words[0]: words[1] for line in lines if len(words := line.split()) == 2}


def asked(*command: str) -> str:
    """Runs one of Slurm's programs; returns what it prints.

    Raises:
      UsageError: It is not there, does not answer, or refuses: in its own words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--engine slurm: {command[0]} does not answer: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UsageError(f"--engine slurm: {command[0]} refused: {said}")
    return done.stdout
