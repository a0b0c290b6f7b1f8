"""The repetitions that a verdict takes: one where all agrees; others to tell what explains a difference."""

import dataclasses
from pathlib import Path

from everstep.errors import UsageError
from everstep.run.environment import code_version, environment
from everstep.run.reproduce import data_here, recorded_code
from everstep.run.reproduce.causes import CODE, HARDWARE, PACKAGE, RANDOMNESS, UNRECORDED, Cause, causes
from everstep.run.reproduce.evidence import Evidence, examine
from everstep.run.reproduce.outcome import Outcome, compare
from everstep.run.reproduce.process import carry_out
from everstep.run.reproduce.recorded_code import Unknown
from everstep.run.reproduce.repeating import Missing, plan
from everstep.run.reproduce.verdict import Verdict, judge

_OPEN = (CODE, PACKAGE, HARDWARE, RANDOMNESS)
_UNTRIED = "the code of the record cannot be tried"


@dataclasses.dataclass(frozen=True)
class Trials:
    """Does a run again, as often as it takes to name what explains a difference.

    Attributes:
      run: The run, as it was named.
      original: What it has left.
      code: The folder of its code.
      into: Where to do it; not there yet.
      spare: A folder for further repetitions.
      upto: The last step to compare; None for all.
      show: Whether people are to see how far it is.
    """

    run: Path
    original: Evidence
    code: Path
    into: Path
    spare: Path
    upto: int | None
    show: bool

    def verdict(self) -> Verdict:
        """Does the run again with the code that is here, and finds out why the two differ, if they do.

        Raises:
          Missing: It cannot be done.
        """
        try:
            again = self._repeat("again", self.upto)
        except Missing as failure:
            return self._failing_here(failure)
        found = judge(self.original, again, self.upto)
        if found.identical or found.cause is None or found.cause.kind not in _OPEN or not found.outcome.difference:
            return found
        if found.cause.kind == CODE:
            return self._with_other_code(found, again)
        return self._twice(found, again, recorded=False)

    def _failing_here(self, failure: Missing) -> Verdict:
        """Looks for what has changed where it fails here: the data, or the code, with which it does not."""
        if data := data_here.changed(self.original, self.code):
            outcome = Outcome(_here(failure), None, 0, None)
            return Verdict(outcome, data[0], tuple(data[1:]), str(self.original.directory), str(self.into))
        now = {**self.original.record, "code": code_version(self.code), "environment": environment()}
        changed = [cause for cause in causes(self.original.record, now, {}, {}) if cause.kind == CODE]
        if not changed or data_here.gone(self.original, self.code):  # a commit may have the data, too
            raise failure
        try:
            again = self._repeat("recorded", self.upto, recorded=True)
        except Unknown as error:
            raise Missing(f"{failure}; {_UNTRIED}: {error}") from error
        except Missing:
            raise failure from None
        found = judge(self.original, again, self.upto)
        if found.outcome.difference:
            raise failure
        outcome = dataclasses.replace(found.outcome, difference=_here(failure))
        found = dataclasses.replace(found, outcome=outcome)
        return found.explained("with the code of the record it is identical", changed[0])

    def _with_other_code(self, found: Verdict, again: Evidence) -> Verdict:
        """Does it with the recorded code: if that agrees, the code is what makes the difference."""
        step = found.outcome.step
        try:
            former = self._repeat("recorded", step, recorded=True)
        except (Unknown, Missing) as error:
            return self._twice(found.explained(f"{_UNTRIED}: {error}"), again, recorded=False)
        if not compare(self.original, former, step).difference:
            return found.explained("with the code of the record it is identical")
        rest = judge(self.original, former, step)
        others = (*rest.others, *([found.cause] if found.cause else ()))
        rest = dataclasses.replace(rest, others=others, again=found.again)
        return self._twice(rest.explained("with the code of the record it differs as well"), former, recorded=True)

    def _twice(self, found: Verdict, again: Evidence, recorded: bool) -> Verdict:
        """Does it once more: what differs from itself is random; what does not has another cause."""
        step = found.outcome.step
        try:
            second = self._repeat("twice", step, recorded=recorded)
        except Missing as error:
            return found.explained(f"a second time, {error}")
        itself = compare(again, second, step).difference
        if itself:
            what = "done twice with the same code, data, packages, hardware and seed, it differs from itself"
            return found.explained(f"twice: {itself}", Cause(RANDOMNESS, what))
        note = "done twice, it is the same both times"
        if found.cause is not None and found.cause.kind == RANDOMNESS:
            what = "code, data, packages, hardware and seed are the same as far as recorded: something else is not"
            return found.explained(note, Cause(UNRECORDED, what))
        return found.explained(note)

    def _repeat(self, name: str, until: int | None, recorded: bool = False) -> Evidence:
        code, path = self.code, ""
        place = self.into if name == "again" else self.spare / name
        if recorded:
            files = self.spare / f"{name}-code"
            code = recorded_code.restore(self.original, self.code, files)
            path = recorded_code.python_path(self.code, files)
        repetition = plan(self.run, self.original, place, code)
        try:
            carry_out(repetition, self.show, until, path)
        except Missing as error:  # of what is temporary, nobody has heard
            raise Missing(str(error).replace(str(repetition.folder), str(self.code))) from error
        version = self.original.record["code"] if recorded else code_version(self.code)
        try:
            found = examine(repetition.result)
        except UsageError as error:
            raise Missing(f"nothing came of it: {error}") from error
        return dataclasses.replace(found, record={**found.record, "code": version})


def _here(failure: Missing) -> str:
    return f"its start: here {failure}"
