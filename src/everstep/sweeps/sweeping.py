"""`everstep.sweep`: checks what is asked for, opens the study, starts the workers and waits for them."""

import collections
import contextlib
import dataclasses
import datetime
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import TrainingError, UsageError
from everstep.notebook import people_stream
from everstep.run import Interrupted, signals_handled
from everstep.sweeps import FILE, PAGE, page
from everstep.sweeps.definition import Definition, require_same
from everstep.sweeps.executors import LocalWorkers
from everstep.sweeps.function import check_function, function_name
from everstep.sweeps.parent_run import ParentRun
from everstep.sweeps.space import Space, Values, create_space, is_swept
from everstep.sweeps.study import CONTINUES, REASON, SweepStudy, create_sampler, value_of
from everstep.sweeps.target import Check, ExperimentTarget, FunctionTarget, Target, check_space, experiment_check
from everstep.sweeps.worker import PROBLEM, Worker
from everstep.tracking import clock_time, value_text

TRIALS = 20
"""How many trials a sweep has, unless it is a grid."""

_AGAIN = "run again, the sweep tries failed trials again"
_MAX_FAILURES = 5
_PAGE_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class SweepTrial:
    """One trial, as `Study.trials` lists it.

    Attributes:
      number: Its number.
      state: `complete`, `pruned`, `fail`, `running` or `waiting`.
      values: What it tried, by key.
      value: Its result: the best evaluation; of a pruned trial the last; None if it has none.
      results: Its results, one for each metric.
      directory: Its run directory.
      reason: Why it failed; None if it did not.
    """

    number: int
    state: str
    values: Values
    value: float | None
    results: tuple[float, ...]
    directory: Path
    reason: str | None


class Study:
    """A sweep and its trials.

        study = everstep.sweep("regression/sine", {"task.model.units": [8, 16, 32]}, trials=3)
        study.best.values           # {"task.model.units": 32}
        study.best.directory        # its run directory

    Attributes:
      directory: The sweep's directory.
      optuna: Optuna's study, for its own plots and analyses.
    """

    def __init__(self, study: SweepStudy) -> None:
        self._study, self.directory, self.optuna = study, study.directory, study.optuna

    @property
    def trials(self) -> list[SweepTrial]:
        """All trials, by number."""
        return [self._trial(trial) for trial in self._study.trials()]

    @property
    def best(self) -> SweepTrial:
        """The best trial; with several metrics, by the first.

        Raises:
          TrainingError: No trial is complete.
        """
        ranked = [trial for trial in self._study.ranked() if trial.state.name == "COMPLETE"]
        if not ranked:
            raise TrainingError(f"no trial of {str(self.directory)!r} is complete")
        return self._trial(ranked[0])

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.directory / PAGE

    def summary(self) -> dict[str, Any]:
        """Returns the sweep for programs, as `trials.json` has it."""
        return page.summary(self._study)

    def _trial(self, trial: Any) -> SweepTrial:
        row = page._row(self._study, trial)
        place = (self.directory / row["directory"]).resolve()
        results = tuple(trial.values or ())
        names = ("number", "state", "values", "value", "reason")
        return SweepTrial(**{name: row[name] for name in names}, results=results, directory=place)

    def require_complete(self) -> None:
        """Checks that no trial has failed; a pruned one has not.

        Raises:
          TrainingError: Some have; has the reason of the last one.
        """
        trials = self.trials
        failed = [trial for trial in trials if trial.state == "fail"]
        if failed:
            last = failed[-1]
            raise TrainingError(
                f"{len(failed)} of {len(trials)} trials failed; trial {last.number}: {last.reason}",
                remedy=f"{self.directory / 'logs' / str(last.number)}.log has what it wrote; {_AGAIN}",
            )

    def __repr__(self) -> str:
        return f"Study({str(self.directory)!r}, {len(self._study.trials())} trials)"


def sweep(
    target: str | Callable[[Values, Path], Any],
    space: Space | Mapping[str, Any] | str | Path,
    *,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] = "min",
    trials: int | None = None,
    workers: int = 1,
    sampler: str | None = None,
    pruner: str = "none",
    storage: str = "",
    seed: int = 0,
    overrides: Sequence[str] = (),
    imports: Sequence[str] = (),
    backend: str | None = None,
    sweep_dir: str | Path | None = None,
    resume_best: int = 0,
    verbose: bool = True,
) -> Study:
    """Runs a target with many values and returns the study; the same call again resumes it.

    Example:
        space = {"task.model.units": [16, 32, 64], "task.noise": {"low": 0.0, "high": 0.3}}
        study = everstep.sweep("regression/sine", space, trials=20, workers=2)
        study.best.values, study.best.directory

    Args:
      target: A registered experiment's name; a script, `train.py`, of whose command line the keys are options; or
        a function that takes the values of a trial by name, and its directory
        if it has a parameter `model_dir`, or both as `(values, directory)`. It returns a number, or numbers by name. A
        function that can be imported runs in a process of its own for each trial; one of a notebook is called here,
        one trial at a time, and is not pruned.
      space: The keys that vary, see `docs/how-to/sweep.md`; or a file with them.
      metric: The metric to optimise; several for a front of best trials. By default `validation_loss`, of a function
        what it returns.
      mode: `min` or `max`; one for each metric.
      trials: How many trials; by default 20, of a grid all. A higher number in a later call adds trials.
      workers: How many run at the same time.
      sampler: `tpe`, `random`, `grid`, `cmaes` or `nsga2`; by default `grid` where the trials are enough for every
        combination, so that none is tried twice, else `tpe`.
      pruner: `none`, `median` or `hyperband`: stops trials early that do worse than others.
      storage: The URL of a database that workers on several machines share; by default a file in the directory.
      seed: The seed of the sampler.
      overrides: Values that are the same in all trials: `trainer.train_steps=200`.
      imports: Modules that register the experiment.
      backend: The Keras backend of the trials.
      sweep_dir: The directory; by default `runs/sweep-<target>-<digest of target, space and metric>`.
      resume_best: Trains so many of the best trials longer, with `overrides` that say how long.
      verbose: Whether to print a line for each trial to standard error.

    Raises:
      UsageError: The request cannot be carried out; nothing was trained.
      TrainingError: All trials failed.
    """
    require_workers(workers)
    function = target if callable(target) else None
    found = create_space(space, [word for word in overrides if is_swept(word)])
    fixed = [word for word in overrides if not is_swept(word)]
    root, check = str(Path.cwd()), None
    wanted: Target
    if function is not None:
        always = [one.key for one in found.dimensions if not one.when]
        check_function(function, [*always, *found.fixed], [one.key for one in found.dimensions if one.when])
        name = function_name(function)
        shown = str(getattr(function, "__qualname__", "function"))
        wanted = FunctionTarget(name or shown, (), root)
        if name is None and (workers > 1 or pruner != "none"):
            raise UsageError(
                "a function of a notebook runs in this process: one trial at a time, without a pruner",
                key="workers" if workers > 1 else "pruner",
                received=workers if workers > 1 else pruner,
                remedy="put it into a module, or omit it",
            )
        function = function if name is None else None
    elif str(target).endswith(".py"):
        from everstep.sweeps.script import ScriptTarget

        wanted = ScriptTarget(str(target), () if resume_best else tuple(fixed), root)
    else:
        name = str(target)
        words = [word for module in imports for word in ("--import", module)]
        words += ["--backend", backend] if backend else []
        extra = [] if resume_best else fixed
        wanted = ExperimentTarget(name, (*words, "--no-export", *extra), root)
        check = experiment_check(found, fixed, experiment=name, backend=backend, imports=list(imports) or None)
    metrics = [wanted.metric] if metric is None else [metric] if isinstance(metric, str) else list(metric)
    modes = [mode] if isinstance(mode, str) else list(mode)
    modes = modes * len(metrics) if len(modes) == 1 else modes
    definition = Definition(
        wanted, found, tuple(metrics), tuple(modes), sampler or "tpe", pruner, seed=seed, storage=storage
    )
    definition = with_usual_values(definition, sampler, trials, sweep_dir)
    study = open_sweep(definition, sweep_dir, check, resume_best > 0)
    longer = continue_best(study, resume_best, fixed, verbose)
    repeat_failed(study, resume_best, verbose)
    run_local(study, workers, longer, verbose, function)
    return Study(study)


def with_usual_values(
    definition: Definition, sampler: str | None, trials: int | None, sweep_dir: str | Path | None = None
) -> Definition:
    """Returns a sweep with the sampler and the number of trials that are named, or else are usual.

    The usual sampler is that of the sweep that exists already. In a new one it is `grid` where the trials are enough
    for every combination, so that none is tried twice, else `tpe`. A grid has all its trials, another sweep 20.
    """
    directory = default_directory(definition) if sweep_dir is None else Path(sweep_dir)
    if sampler is None and (directory / FILE).is_file():
        sampler = Definition.load(directory).sampler
    if sampler is None:
        countable = all(one.points() is not None for one in definition.space.dimensions)
        most = TRIALS if trials is None else trials
        sampler = "grid" if countable and len(definition.space.grid()) <= most else "tpe"
    if trials is None:
        trials = len(definition.space.grid()) if sampler == "grid" else TRIALS
    return dataclasses.replace(definition, sampler=sampler, trials=trials)


def default_directory(definition: Definition) -> Path:
    """Returns `runs/sweep-<target>-<digest>`: the same request finds its sweep again."""
    name = definition.target.name.removesuffix(".py").replace("/", "-").replace(":", "-")
    return definition.target.home / "runs" / f"sweep-{name}-{definition.digest()}"


def _earlier_directory(definition: Definition) -> Path:
    """Returns the directory of the sweep over the same space, whatever values were fixed in it.

    Raises:
      UsageError: There are several.
    """
    default, found = default_directory(definition), []
    for path in sorted(default.parent.glob(f"{default.name.rpartition('-')[0]}-*")):
        with contextlib.suppress(UsageError):
            stored = Definition.load(path)
            target = dataclasses.replace(definition.target, words=stored.target.words)
            if stored.identity() == dataclasses.replace(definition, target=target).identity():
                found.append(path)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UsageError(f"there are several such sweeps: {names}", key="--resume-best", remedy="name its --sweep-dir")
    return found[0] if found else default


def require_workers(count: int) -> None:
    """Refuses a number of workers that cannot be.

    Raises:
      UsageError: It is below 1.
    """
    if count < 1:
        raise UsageError("must be at least 1", key="--workers", received=count)


def open_sweep(
    definition: Definition, sweep_dir: str | Path | None = None, check: Check | None = None, lenient: bool = False
) -> SweepStudy:
    """Checks a sweep, creates its directory and its study, or opens those that exist.

    Args:
      definition: What it is.
      sweep_dir: Its directory; None for the default.
      check: Raises UsageError if the configuration does not take values.
      lenient: Whether a sweep must exist, whose fixed values, sampler, pruner and number of trials count then: only
        some of its trials are to be trained longer.

    Raises:
      UsageError: The configuration does not take the space; or directory or storage have another sweep.
    """
    if check is not None:
        check_space(definition.space, check)
    if definition.sampler == "grid":
        definition.space.grid()
    create_sampler(definition, 0)  # a package may be missing
    default = _earlier_directory if lenient else default_directory
    directory = Path(sweep_dir) if sweep_dir is not None else default(definition)
    exists = (directory / FILE).is_file()
    if exists:
        stored = Definition.load(directory)
        if lenient:
            definition = dataclasses.replace(definition, target=stored.target)
        require_same(stored.identity(), definition, str(directory))
        given = definition.storage or stored.storage
        definition = dataclasses.replace(stored if lenient else definition, storage=given)
    elif lenient:
        raise UsageError("there is no sweep to continue", key="--resume-best", received=str(directory))
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    storage.prepare_directory(directory)
    try:
        study = SweepStudy(directory, definition, create=True)
    except UsageError:
        if missing:
            storage.remove_directory(directory)
        for parent in missing[1:]:
            with contextlib.suppress(OSError):  # in use by others
                parent.rmdir()
        raise
    definition.save(directory)
    (directory / PROBLEM).unlink(missing_ok=True)
    return study


def continue_best(study: SweepStudy, count: int, longer: Sequence[str], verbose: bool = True) -> list[str]:
    """Queues the best trials to be trained longer; returns the values that say how long.

    Raises:
      UsageError: There is none that has ended.
    """
    if not count:
        return []
    if count < 0:
        raise UsageError("must be at least 0", key="--resume-best", received=count)
    if reason := study.definition.target.cannot_train_longer:
        raise UsageError(reason, key="--resume-best", received=count)
    numbers = study.continue_best(count)
    if not numbers:
        raise UsageError("no trial has a result yet", key="--resume-best", received=count)
    if verbose:
        _say(f"training longer: trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}")
    return list(longer)


def repeat_failed(study: SweepStudy, resume_best: int = 0, verbose: bool = True) -> None:
    """Queues the trials that have failed to be tried again, unless only the best ones are to be trained longer."""
    numbers = study.repeat_failed() if not resume_best else []
    if numbers and verbose:
        failed = f"trial {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} trials"
        _say(f"trying again: {failed} that failed before")


def run_local(
    study: SweepStudy,
    workers: int = 1,
    longer: Sequence[str] = (),
    verbose: bool = True,
    function: Callable[..., Any] | None = None,
) -> None:
    """Runs the trials that are missing on this machine, and waits for them.

    Raises:
      UsageError: The metric does not exist.
      TrainingError: Trial after trial failed.
      SweepInterrupted: A stop was requested; all trials have saved their state.
    """
    progress = _SweepProgress(study, verbose, workers)
    progress.show()
    was_done = study.is_done()
    if not was_done and function is not None:
        Worker(study, longer, function=function).run()
    elif not was_done:
        _run_workers(study, workers, longer, progress)
    progress.show()
    if not was_done or not (study.directory / PAGE).is_file():
        page.write(study)
    ParentRun(study).update()
    progress.require_success()


def _run_workers(study: SweepStudy, count: int, longer: Sequence[str], progress: "_SweepProgress") -> None:
    received: list[int] = []
    with signals_handled((signal.SIGTERM, signal.SIGINT), lambda number, frame: received.append(number)):
        workers, parent = LocalWorkers(study.directory, count, longer), ParentRun(study)
        due, has_news = 0.0, False
        try:
            while (code := workers.poll()) is None and not received and not progress.is_hopeless():
                time.sleep(0.1)
                has_news = progress.show() or has_news
                if time.monotonic() > due:
                    begin = time.monotonic()
                    page.write(study, running=True)
                    if has_news:
                        parent.update()
                    has_news = False
                    # A large page takes longer to write: at most a tenth of the time is spent on it.
                    due = time.monotonic() + max(_PAGE_SECONDS, 9 * (time.monotonic() - begin))
        finally:
            if workers.poll() is None:
                workers.stop()
    progress.show()
    if (study.directory / PROBLEM).is_file():
        page.write(study)
        raise UsageError(**storage.read_json(study.directory / PROBLEM))
    if received:
        page.write(study)
        raise SweepInterrupted(signal.Signals(received[-1]).name, 128 + received[-1])
    if code and not study.is_done() and not progress.is_hopeless():
        page.write(study)
        raise TrainingError(f"the workers ended with exit code {code}: {workers.last_lines()}")


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Returns the end of each key that no other one has: `units` for `task.model.units`."""
    keys = list(keys)
    ends = {key: [".".join(key.split(".")[-count:]) for count in range(1, key.count(".") + 2)] for key in keys}
    taken = collections.Counter(end for each in ends.values() for end in each)
    return {key: next((end for end in ends[key] if taken[end] == 1), key) for key in keys}


class SweepInterrupted(Interrupted):
    """A stop was requested, and the trials have saved."""

    @property
    def text(self) -> str:
        """What happened, and how to go on."""
        return f"{self.reason}: the trials are saved; the same command resumes them"


class _SweepProgress:
    """Prints a line for each trial that has ended.

    Args:
      study: The sweep.
      verbose: Whether to print.
      workers: How many trials run at the same time.
    """

    def __init__(self, study: SweepStudy, verbose: bool, workers: int = 1) -> None:
        self._study, self._verbose = study, verbose
        self._shown: set[int] | None = None
        self._failed, self._last_failure, self._useful = 0, "", 0
        self._failed_before = 0
        self._workers = workers
        self._seconds: list[float] = []  # of each trial that has ended since

    def show(self) -> bool:
        """Prints trials that have ended since the last call; returns whether there are any."""
        trials = [trial for trial in self._study.trials() if trial.state.is_finished()]
        if self._shown is None:  # those of earlier commands
            self._shown = {trial.number for trial in trials}
            self._count(trials)
            self._failed_before = self._failed
            if trials and self._verbose:
                _say(f"resumed: {len(trials)} of {self._study.wanted} trials are done in {self._study.directory}")
            return False
        new = [trial for trial in trials if trial.number not in self._shown]
        self._shown |= {trial.number for trial in new}
        self._seconds += [trial.duration.total_seconds() for trial in new if trial.duration is not None]
        self._count(new)
        for trial in new if self._verbose else ():
            _say(self._line(trial, sum(CONTINUES not in one.user_attrs for one in trials)))
        return bool(new)

    def _count(self, trials: Iterable[Any]) -> None:
        for trial in trials:
            if trial.state.name == "FAIL":
                self._failed += 1
                self._last_failure = str(trial.user_attrs.get(REASON, ""))
            else:
                self._useful += 1

    def _line(self, trial: Any, done: int) -> str:
        definition = self._study.definition
        value, ranked = value_of(trial), self._study.ranked()
        metric = self._study.metrics[0] or "loss"  # as earlier versions left it open
        shown = f"{metric}={value_text(value, 6)}" if value is not None else str(trial.user_attrs.get(REASON, ""))[:160]
        best = f", best {value_text(value_of(ranked[0]) or 0.0, 6)} (trial {ranked[0].number})" if ranked else ""
        names = short_names(one.key for one in definition.space.dimensions)
        stored = definition.space.stored(trial).items()
        texts = {key: value_text(held, 6) if isinstance(held, float) else str(held) for key, held in stored}
        values = " ".join(f"{names[key]}={text}" for key, text in texts.items())
        state = {"COMPLETE": "", "PRUNED": "pruned, ", "FAIL": "failed: "}[trial.state.name]
        counted = f"{done} of {self._study.wanted}{self._time_left(done)}"
        return redaction.text(f"trial {trial.number}  {state}{shown}  {values}  [{counted}{best}]")

    def _time_left(self, done: int) -> str:
        """Returns how long the other trials will take, if they take as long as those that this command has seen."""
        left = self._study.wanted - done
        if left <= 0 or not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        now = datetime.datetime.now()  # as Optuna has it, without a time zone
        running = [trial for trial in self._study.trials() if trial.state.name == "RUNNING" and trial.datetime_start]
        spent = sum(min(mean, (now - trial.datetime_start).total_seconds()) for trial in running)
        return f", about {clock_time((left * mean - spent) / self._workers)} left"

    def is_hopeless(self) -> bool:
        """Returns whether every trial so far has failed, some of them now: earlier ones may have had another cause."""
        return not self._useful and self._failed - self._failed_before >= min(_MAX_FAILURES, self._study.wanted)

    def require_success(self) -> None:
        """Checks that some trial has a result.

        Raises:
          TrainingError: None has; has the reason of the last one.
        """
        if not self._useful and self._failed:
            raise TrainingError(
                f"all {self._failed} trials failed; the last one: {self._last_failure}",
                remedy=f"{self._study.directory / 'logs'} has what they wrote; {_AGAIN}",
            )


def _say(text: str) -> None:
    print(text, file=people_stream(), flush=True)
