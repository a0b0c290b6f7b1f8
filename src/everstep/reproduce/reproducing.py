"""`reproduce`: repeats a run, compares, and returns a verdict; `compare_runs` compares two existing runs."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.reproduce.comparison import (
    CODE,
    HARDWARE,
    PACKAGE,
    RANDOMNESS,
    UNRECORDED,
    Cause,
    ComparisonOutcome,
    Verdict,
    causes,
    changed_files,
    compare,
    judge,
    missing_files,
)
from everstep.reproduce.evidence import Evidence, examine, stored_config
from everstep.reproduce.repetition import (
    CodeUnavailable,
    NotRepeatable,
    code_folder,
    create_repetition,
    python_path,
    restore_code,
    run_repetition,
)
from everstep.run import code_version, environment, export_record, loop_directory, print_line, with_files_of

_MOST_STEPS = 12
_UNCERTAIN = (CODE, PACKAGE, HARDWARE, RANDOMNESS)
_REMOVED = "the repetition was in a temporary directory, which is removed: --model-dir DIR keeps it"
_UNTRIED = "the code of the record cannot be tried"


def reproduce(
    run: storage.PathLike,
    steps: int | None = None,
    model_dir: storage.PathLike | None = None,
    show: bool = True,
    project: storage.PathLike | None = None,
) -> Verdict:
    """Repeats a run from its record, and compares the weights and every logged number.

        verdict = reproduce("runs/mnist-local-5f2c7a90b1", steps=100)
        print(*verdict.lines(), sep="\\n")

    Args:
      run: The run directory.
      steps: The number of steps to repeat, for a cheaper, partial proof. Only steps that the run has kept are compared.
      model_dir: The directory for the repetition; by default a temporary one.
      show: Whether to print the progress.
      project: The folder of the code; by default that of a flow's or a component's run, else the working directory.

    Raises:
      UsageError: It is not a run, has not ended, or its code or data is missing; tells what could be checked.
    """
    directory = Path(run)
    original = _original(directory)
    upto = _last_step(original, steps)
    with _place(model_dir) as (into, spare):
        code = Path.cwd()
        try:
            code = code_folder(directory, original, None if project is None else Path(project))
            found = Trials(directory, original, code, into, spare, upto, show).verdict()
        except NotRepeatable as missing:
            raise UsageError(
                f"cannot be repeated: {missing}; {_still_known(original, code)}", key=str(run)
            ) from missing
        found = found if upto in (None, steps) else found.explained(f"--steps {steps}: {_checkable(original)}")
    if model_dir is None:
        found = dataclasses.replace(found, again="")
    if show:
        print_line(f"the repetition is kept in {found.again}" if found.again else _REMOVED)
    return found


def compare_runs(run: storage.PathLike, other: storage.PathLike, steps: int | None = None) -> Verdict:
    """Compares two existing runs as `reproduce` does; runs nothing.

    Raises:
      UsageError: One of them is not a run, or has nothing to compare.
    """
    original, again = _original(Path(run), ended=False), _original(Path(other), ended=False)
    upto = _last_step(original, steps)
    if upto is None:
        _last_step(again, None)  # refuses a run that did not finish
    elif again.record["step"] < upto:
        raise UsageError(
            f"is at step {again.record['step']} (status {again.record['status']!r}), before step {upto}",
            key=str(again.directory),
            remedy=f"--steps {again.record['step']} compares the common part",
        )
    return judge(original, again, upto)


def _original(run: Path, ended: bool = True) -> Evidence:
    found = examine(loop_directory(run))
    if (exported := export_record(run)) is not None:
        code = storage.read_json(exported).get("code")
        found = dataclasses.replace(found, record={**found.record, "code": code or found.record["code"]})
    if ended and found.record["status"] != "finished" and not found.record["step"]:
        raise UsageError(f"has done no step (status {found.record['status']!r})", key=str(run), remedy="train it first")
    return found


def _last_step(original: Evidence, steps: int | None) -> int | None:
    """Returns the last step up to `steps` that the run has logged or saved; None for its end.

    Raises:
      UsageError: There is no such step, or the run did not finish and `steps` is not specified.
    """
    if steps is None:
        if original.record["status"] != "finished":
            raise UsageError(
                f"did not finish (status {original.record['status']!r} at step {original.record['step']})",
                key=str(original.directory),
                remedy=f"--steps {original.record['step']} reproduces what it has done",
            )
        return None
    if steps < 1:
        raise UsageError("must be at least 1", key="--steps", received=steps)
    known = [step for step in _steps(original) if step <= steps]
    if not known:
        raise UsageError("the run has kept no earlier step", key="--steps", received=steps, remedy=_checkable(original))
    return max(known)


def _steps(original: Evidence) -> list[int]:
    return sorted({*original.steps(), *original.numbers} - {0})


def _checkable(original: Evidence) -> str:
    known = _steps(original)
    if not known:
        return "there is no step that can be checked"
    listed = [*map(str, known[:_MOST_STEPS]), *(["…", str(known[-1])] if len(known) > _MOST_STEPS else [])]
    return f"steps that can be checked: {', '.join(listed)}"


@contextlib.contextmanager
def _place(model_dir: storage.PathLike | None) -> Iterator[tuple[Path, Path]]:
    """Yields the directory of the repetition, and a temporary folder for further repetitions."""
    with tempfile.TemporaryDirectory(prefix="everstep-reproduce-", ignore_cleanup_errors=True) as folder:
        if model_dir is None:
            yield Path(folder, "again"), Path(folder)
            return
        target = Path(model_dir).absolute()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError("is not empty", key="--model-dir", received=str(model_dir), remedy="use a new directory")
        yield target, Path(folder)


def _still_known(original: Evidence, code: Path) -> str:
    """Returns, on one line, what can be checked of a run that cannot be repeated."""
    here = {**environment(), "settings": original.record["environment"].get("settings")}  # a repetition would use them
    now = {**original.record, "environment": here, "code": _code_now(original, code)}
    with contextlib.suppress(UsageError):
        config = stored_config(original.directory / "config.yaml")
        found = [*missing_files(original, code), *causes(original.record, now, original.config, config)]
        different = [str(cause) for cause in found]
        return f"checked without it: {_kept(original)}; {'; '.join(different) or 'packages and hardware are the same'}"
    return f"checked without it: {_kept(original)}"


def _kept(original: Evidence) -> str:
    step, recorded = original.record["step"], original.record["weights_digest"]
    stored = original.saved_weights(step)
    if stored is None or recorded is None:
        return f"the weights after step {step} are missing or damaged"
    return f"the weights kept of step {step} {'are' if stored == recorded else 'are not'} those of the record"


@dataclasses.dataclass(frozen=True)
class Trials:
    """Repeats a run until the cause of a difference is known: once, if all agrees, up to three times if not.

    Attributes:
      run: The path of the run, as the user specified it.
      original: What the run has left.
      code: The folder of its code.
      into: The directory for the first repetition; it must not exist.
      spare: A folder for further repetitions.
      upto: The last step to compare; None for all.
      show: Whether to print the progress.
    """

    run: Path
    original: Evidence
    code: Path
    into: Path
    spare: Path
    upto: int | None
    show: bool

    def verdict(self) -> Verdict:
        """Repeats the run with the current code, and determines why the two differ, if they do.

        Raises:
          NotRepeatable: The run cannot be repeated.
        """
        try:
            again = self._repeat("again", self.upto)
        except NotRepeatable as failure:
            return self._failing_here(failure)
        found = judge(self.original, again, self.upto)
        if found.identical or found.cause is None or found.cause.kind not in _UNCERTAIN or not found.outcome.difference:
            return found
        if found.cause.kind == CODE:
            return self._with_other_code(found, again)
        return self._twice(found, again, recorded=False)

    def _failing_here(self, failure: NotRepeatable) -> Verdict:
        """Determines the cause of a repetition that fails: changed data, or changed code."""
        if data := changed_files(self.original, self.code):
            outcome = ComparisonOutcome(_here(failure), None, 0, None)
            return Verdict(outcome, data[0], tuple(data[1:]), str(self.original.directory), str(self.into))
        now = {**self.original.record, "code": _code_now(self.original, self.code), "environment": environment()}
        changed = [cause for cause in causes(self.original.record, now, {}, {}) if cause.kind == CODE]
        if not changed or missing_files(self.original, self.code):  # a commit may have the data, too
            raise failure
        try:
            again = self._repeat("recorded", self.upto, recorded=True)
        except CodeUnavailable as error:
            raise NotRepeatable(f"{failure}; {_UNTRIED}: {error}") from error
        except NotRepeatable:
            raise failure from None
        found = judge(self.original, again, self.upto)
        if found.outcome.difference:
            raise failure
        outcome = dataclasses.replace(found.outcome, difference=_here(failure))
        found = dataclasses.replace(found, outcome=outcome)
        return found.explained("with the code of the record it is identical", changed[0])

    def _with_other_code(self, found: Verdict, again: Evidence) -> Verdict:
        """Repeats the run with the recorded code: if that agrees, the code is the cause."""
        step = found.outcome.step
        try:
            former = self._repeat("recorded", step, recorded=True)
        except (CodeUnavailable, NotRepeatable) as error:
            return self._twice(found.explained(f"{_UNTRIED}: {error}"), again, recorded=False)
        if not compare(self.original, former, step).difference:
            return found.explained("with the code of the record it is identical")
        rest = judge(self.original, former, step)
        others = (*rest.others, *([found.cause] if found.cause else ()))
        rest = dataclasses.replace(rest, others=others, again=found.again)
        return self._twice(rest.explained("with the code of the record it differs as well"), former, recorded=True)

    def _twice(self, found: Verdict, again: Evidence, recorded: bool) -> Verdict:
        """Repeats the run once more: if the repetitions differ, it is random; if not, there is another cause."""
        step = found.outcome.step
        try:
            second = self._repeat("twice", step, recorded=recorded)
        except NotRepeatable as error:
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
            code = restore_code(self.original, self.code, files)
            path = python_path(self.code, files)
        repetition = create_repetition(self.run, self.original, place, code)
        try:
            run_repetition(repetition, self.show, until, path, self.spare)
        except NotRepeatable as error:  # the user does not know the temporary folder
            raise NotRepeatable(str(error).replace(str(repetition.folder), str(self.code))) from error
        version = self.original.record["code"] if recorded else _code_now(self.original, self.code)
        try:
            found = examine(repetition.result)
        except UsageError as error:
            raise NotRepeatable(f"the repetition left no run: {error}") from error
        return dataclasses.replace(found, record={**found.record, "code": version})


def _code_now(original: Evidence, folder: Path) -> dict[str, Any]:
    """Returns the version of the code in a folder, with the files that the original run has imported."""
    return with_files_of(original.record["code"], code_version(folder), folder)


def _here(failure: NotRepeatable) -> str:
    return f"its start: here {failure}"
