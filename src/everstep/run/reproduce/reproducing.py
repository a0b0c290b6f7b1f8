"""The way in: a run becomes a verdict."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.run.environment import code_version, environment
from everstep.run.layouts import export_record, loop_directory
from everstep.run.reproduce import data_here, repeating
from everstep.run.reproduce.causes import causes
from everstep.run.reproduce.evidence import Evidence, examine, stored_config
from everstep.run.reproduce.trials import Trials
from everstep.run.reproduce.verdict import Verdict, judge

_MOST_STEPS = 12


def reproduce(
    run: storage.PathLike,
    steps: int | None = None,
    model_dir: storage.PathLike | None = None,
    show: bool = True,
    project: storage.PathLike | None = None,
) -> Verdict:
    """Does a run again from its record, and compares the weights and every logged number.

        verdict = reproduce("runs/mnist-local-5f2c7a90b1", steps=100)
        print(*verdict.lines(), sep="\\n")

    Args:
      run: The run directory.
      steps: How far to go: a part of the proof at a part of the price. Compared is what the run has kept up to there.
      model_dir: Where to do it; by default in a temporary directory, of which nothing is left.
      show: Whether people are to see how far it is.
      project: The folder of the code; by default that of a flow's or a component's run, else the current folder.

    Raises:
      UsageError: It is no run, has not ended, or its code or data is gone; says what could be checked still.
    """
    directory = Path(run)
    original = _original(directory)
    upto = _last_step(original, steps)
    with _place(model_dir) as (into, spare):
        code = Path.cwd()
        try:
            code = repeating.code_folder(directory, original, None if project is None else Path(project))
            found = Trials(directory, original, code, into, spare, upto, show).verdict()
        except repeating.Missing as missing:
            raise UsageError(
                f"{str(run)!r} cannot be done again: {missing}; {_still_known(original, code)}"
            ) from missing
        return found if upto in (None, steps) else found.explained(f"--steps {steps}: {_checkable(original)}")


def compare_runs(run: storage.PathLike, other: storage.PathLike, steps: int | None = None) -> Verdict:
    """Compares a run with another that is there already, as `reproduce` does; nothing is run.

    Raises:
      UsageError: One of them is no run, or has nothing to compare.
    """
    original, again = _original(Path(run), ended=False), _original(Path(other), ended=False)
    upto = _last_step(original, steps)
    if upto is None:
        _last_step(again, None)  # one that did not finish is no whole one to compare with
    elif again.record["step"] < upto:
        raise UsageError(
            f"{str(again.directory)!r} is at step {again.record['step']} (it is {again.record['status']!r}), which is "
            f"before step {upto}: --steps {again.record['step']} compares what there is"
        )
    return judge(original, again, upto)


def _original(run: Path, ended: bool = True) -> Evidence:
    found = examine(loop_directory(run))
    if (exported := export_record(run)) is not None:
        code = storage.read_json(exported).get("code")
        found = dataclasses.replace(found, record={**found.record, "code": code or found.record["code"]})
    if ended and found.record["status"] != "finished" and not found.record["step"]:
        raise UsageError(f"{str(run)!r} has done no step (it is {found.record['status']!r}): nothing to reproduce")
    return found


def _last_step(original: Evidence, steps: int | None) -> int | None:
    """Returns where to end: the last step, not beyond `steps`, of which the run has kept something; None: at its end.

    Raises:
      UsageError: It has kept nothing up to there, or it did not end by itself and nobody said how far to go.
    """
    if steps is None:
        if original.record["status"] != "finished":
            raise UsageError(
                f"{str(original.directory)!r} did not finish (it is {original.record['status']!r} at step "
                f"{original.record['step']}): --steps {original.record['step']} reproduces what there is"
            )
        return None
    if steps < 1:
        raise UsageError(f"--steps: received {steps}, must be at least 1")
    known = [step for step in _steps(original) if step <= steps]
    if not known:
        raise UsageError(f"--steps {steps}: the run has kept nothing of any step up to there; {_checkable(original)}")
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
    """Yields where to do it, and a folder for what a second time takes, which is always a temporary one."""
    with tempfile.TemporaryDirectory(prefix="everstep-reproduce-", ignore_cleanup_errors=True) as folder:
        if model_dir is None:
            yield Path(folder, "again"), Path(folder)
            return
        target = Path(model_dir).absolute()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"--model-dir {model_dir}: it is not empty: name a new directory, nothing is overwritten")
        yield target, Path(folder)


def _still_known(original: Evidence, code: Path) -> str:
    """Returns, on a line, what can be said of a run that cannot be done again."""
    here = {**environment(), "settings": original.record["environment"].get("settings")}  # it would get those
    now = {**original.record, "environment": here, "code": code_version(code)}
    with contextlib.suppress(UsageError):
        config = stored_config(original.directory / "config.yaml")
        found = [*data_here.gone(original, code), *causes(original.record, now, original.config, config)]
        different = [str(cause) for cause in found]
        return f"checked without it: {_kept(original)}; {'; '.join(different) or 'packages and hardware are the same'}"
    return f"checked without it: {_kept(original)}"


def _kept(original: Evidence) -> str:
    step, recorded = original.record["step"], original.record["weights_digest"]
    stored = original.saved_weights(step)
    if stored is None or recorded is None:
        return f"the weights after step {step} are not kept whole"
    return f"the weights kept of step {step} {'are' if stored == recorded else 'are not'} those of the record"
