"""Runs that a user's program has started, by `fit`, `run_experiment` or `Training`: the program is started again.

Its code names the directory of the run. `run/program.py` explains how the repetition gets another one, so that the
program itself need not be changed.
"""

import re
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.redaction import is_redacted
from everstep.reproduce.evidence import Evidence, stored_config
from everstep.reproduce.repetition import NotRepeatable, Repetition, register_repeatable, repository
from everstep.run import PROGRAM, TRAINED_BY, Redirection, stored_seed


class ProgramRuns:
    """Runs of a program whose script is in the record."""

    def is_of(self, run: Path, original: Evidence) -> bool:
        """Returns whether a script is in the record, and no experiment that `everstep train` could repeat."""
        program = original.record.get(PROGRAM) or {}
        if not program.get("script") or program.get(TRAINED_BY):
            return bool(program.get("script"))
        return not stored_config(original.directory / "config.yaml").get("experiment")

    def code_folder(self, run: Path, original: Evidence, project: Path | None) -> Path:
        """Returns the folder in which the script was started: as specified, else the working directory.

        The recorded folder is only mentioned: a run may come from elsewhere, and must not choose what is executed.
        """
        program, code = original.record[PROGRAM], (project or Path.cwd()).absolute()
        script = (code / program["script"]).resolve()
        if not script.is_relative_to((repository(code) or code).resolve()):
            raise NotRepeatable(f"its program {program['script']!r} is outside the folder {str(code)!r}")
        if not script.is_file():
            raise UsageError(
                f"was trained by {_shown(program)}, which is not in {str(code)!r}",
                key=str(run),
                remedy=f"call this in the folder that it was started in, or add --project {program['directory']}",
            )
        return code

    def repeat(self, run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
        """Starts the script with the same arguments; its run has the directory `into` and the recorded seed."""
        program = original.record[PROGRAM]
        script, words = Path(program["script"]), list(program["arguments"])
        if hidden := [word for word in words if is_redacted(word)]:
            raise NotRepeatable(f"an argument of {_shown(program)} was a secret, and is not in the record: {hidden[0]}")
        if not (code / script).is_file():
            raise NotRepeatable(f"its program {str(script)!r} did not exist")
        redirected = Redirection(str(into), int(program["run"]), stored_seed(original.directory), repeats=True)
        variables = {**redirected.variables(), "KERAS_BACKEND": str(original.record["backend"])}
        return Repetition(words, code, into, {}, _started_by(program, script), variables)


def _started_by(program: dict[str, Any], script: Path) -> tuple[str, ...]:
    """Returns the arguments of Python: the script, or the module where that was started by its name."""
    module = program.get("module")
    if module is None:
        return (str(script),)
    parts = re.escape(str(module)).split(r"\.")
    if not re.search(rf"(^|/){'/'.join(parts)}(/__main__)?\.py$", script.as_posix()):
        raise NotRepeatable(f"its program is recorded as the module {module!r} and as another file, {str(script)!r}")
    return ("-m", str(module))


def _shown(program: dict[str, Any]) -> str:
    return repr(str(program["script"]))


register_repeatable(ProgramRuns())
