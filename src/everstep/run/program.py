"""The program that starts a run from Python: how it is recorded, and where its runs are when it is started again.

`everstep reproduce` and trials of `everstep sweep train.py` start a user's program, in whose code a run directory is
written. One variable in its environment says which directory to use instead:

    EVERSTEP_REDIRECTED_RUN='{"directory": "/tmp/again", "number": 1, "seed": 5, "repeats": true}'

The first directory that the program names (`number` 1) becomes `/tmp/again`, another one `/tmp/again-<its name>` beside
it. The program itself is not changed, and nothing is written where its former runs are.
"""

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage

VARIABLE = "EVERSTEP_REDIRECTED_RUN"
"""The environment variable with the directory."""

PROGRAM = "program"
"""The key of the program in `run.json`."""

TRAINED_BY = "trained_by"
"""The key in it of a class whose runs no command repeats."""


@dataclasses.dataclass(frozen=True)
class Redirection:
    """Where the runs of a program are, instead of in the directories that its code names.

    Attributes:
      directory: The directory of the run that is looked at.
      number: Which of the program's runs that is: 1 for the one whose directory is named first.
      seed: Its seed, where the program names none; None for a seed as usual.
      repeats: Whether the program is repeated only to compare it: then no server is told about it.
      allow_change: What that run may change although it is resumed, as a fork is.
    """

    directory: str
    number: int = 1
    seed: int | None = None
    repeats: bool = False
    allow_change: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """Returns the variables for the environment of the program."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    def place(self, model_dir: str, number: int) -> str:
        """Returns the directory for the run that the program names as so many-th, in `model_dir`."""
        if number == self.number:
            return self.directory
        name = re.sub(r"\W+", "-", os.path.relpath(model_dir) if "://" not in model_dir else model_dir).strip("-")
        return f"{self.directory}-{name}"


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """A run that a user's program starts.

    Attributes:
      directory: Where it is.
      number: Which of the program's runs it is, from 1.
      seed: The seed of the run that is repeated; None where none is.
      allow_change: What it may change although it is resumed, beside what its program allows.
    """

    directory: str | Path
    number: int
    seed: int | None = None
    allow_change: tuple[str, ...] = ()

    def allowed(self, by_program: str | Sequence[str]) -> list[str]:
        """Returns the keys that it may change: those that its program allows, and those of this start."""
        return [*([by_program] if isinstance(by_program, str) else by_program), *self.allow_change]

    def record(self, trained_by: str = "") -> dict[str, Any]:
        """Returns the entry of `run.json`: how the program was started.

        Args:
          trained_by: The class that trains, where no command could: the program alone repeats its runs.
        """
        entry = {**_running_program(), "run": self.number}
        return {PROGRAM: {**entry, TRAINED_BY: trained_by} if trained_by else entry}


_numbers: dict[str, int] = {}
"""The directories that this process has named, and their numbers."""


def program_run(model_dir: str | Path) -> ProgramRun:
    """Returns the run that a program starts in `model_dir`; the same directory is the same run.

    Whatever a program calls first with its directory, asks this: `fit`, `run_experiment`, `Training`.
    """
    number = _numbers.setdefault(str(model_dir), len(_numbers) + 1)
    elsewhere = redirection()
    if elsewhere is None:
        return ProgramRun(model_dir, number)
    place = elsewhere.place(str(model_dir), number)
    if number != elsewhere.number:
        return ProgramRun(place, number)
    return ProgramRun(place, number, elsewhere.seed, tuple(elsewhere.allow_change))


def directory_of(model_dir: storage.PathLike) -> str:
    """Returns where the run is that this process has started in `model_dir`; any other directory is itself."""
    name, elsewhere = os.fspath(model_dir), redirection()
    number = _numbers.get(name)
    return name if elsewhere is None or number is None else elsewhere.place(name, number)


def redirection(environment: Mapping[str, str] = os.environ) -> Redirection | None:
    """Returns where the runs of this process are; None where its code says."""
    text = environment.get(VARIABLE)
    return Redirection(**json.loads(text)) if text else None


def is_repetition() -> bool:
    """Returns whether this process only repeats a run, to be compared with it."""
    found = redirection()
    return found is not None and found.repeats


def command_line(record: Mapping[str, Any]) -> str:
    """Returns the command line of the script that has started a run, as it was typed; empty if none is recorded.

    Example:
        command_line(read("runs/mine"))      # python train.py --lr 0.1
    """
    program = record.get(PROGRAM) or {}
    if not program.get("script"):
        return ""
    started = ["-m", program["module"]] if program.get("module") else [program["script"]]
    words = ["python", *started, *program["arguments"]]
    return " ".join(word if redaction.is_redacted(word) else shlex.quote(word) for word in words)


def _running_program() -> dict[str, Any]:
    """Returns how this process was started; without a script in a notebook, with the reason."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        where = "in a notebook" if "ipykernel" in sys.modules else "at a Python prompt"
        return {"script": None, "reason": f"it was started {where}"}
    spec, here = getattr(main, "__spec__", None), os.getcwd()
    arguments = shlex.split(redaction.text(shlex.join(sys.argv[1:])))
    module = spec.name.removesuffix(".__main__") if spec is not None else None
    return {"script": os.path.relpath(file, here), "module": module, "arguments": arguments, "directory": here}
