"""`everstep sweep`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import (
    aligned,
    choose_backend,
    import_modules,
    new_app,
    number,
    options,
    print_json,
    print_last,
)
from everstep.config import experiments, load_entry_points
from everstep.errors import UsageError, nearest
from everstep.sweeps import (
    PRUNERS,
    SAMPLERS,
    Definition,
    Space,
    SweepChoice,
    SweepStudy,
    TargetRequest,
    create_space,
    executors,
    is_swept,
    sweeping,
    target,
)

app = new_app()

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET", help="A script (train.py), an experiment, a task of a flow's project, or a folder in runs/."
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUES",
        help="key=1,2,3 or key=range(1,5) varies a key, of a script --key; key=1 sets it in every trial.",
    ),
]
SpaceFile = Annotated[str | None, typer.Option("--space", metavar="FILE", help="YAML with the keys that vary.")]
Metric = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="What to optimise: validation_loss; repeatable.")
]
ModeOption = Annotated[
    list[str] | None, typer.Option("--mode", metavar="MODE", help="min, the default, or max; one for each metric.")
]
Trials = Annotated[int | None, typer.Option(metavar="N", help="How many trials; 20 by default, of a grid all.")]
Workers = Annotated[int, typer.Option(metavar="N", help="How many trials run at the same time.")]
Sampler = Annotated[str | None, typer.Option(metavar="NAME", help=f"{', '.join(SAMPLERS)}; by default grid or tpe.")]
Pruner = Annotated[str, typer.Option(metavar="NAME", help=f"Stops bad trials early: {', '.join(PRUNERS)}.")]
Storage = Annotated[
    str, typer.Option(metavar="URL", help="A database that several machines share; by default a file in DIR.")
]
SweepSeed = Annotated[int, typer.Option("--sampler-seed", metavar="N", help="The seed of the sampler.")]
SweepDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="The sweep's directory; by default runs/sweep-TARGET-DIGEST.")
]
ResumeBest = Annotated[
    int, typer.Option(metavar="N", help="Train the N best trials longer: trainer.train_steps=… says how long.")
]
On = Annotated[str, typer.Option("--on", metavar="NAME", help="Where workers run: local, ray or slurm.")]
ConfigFiles = options.ConfigFiles
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the space and print the first trials; train nothing.")]


@app.command(epilog="Example: everstep sweep regression/sine --space space.yaml --trials 50 --workers 2")
def sweep(
    name: Name = None,
    words: Words = None,
    space: SpaceFile = None,
    metric: Metric = None,
    mode: ModeOption = None,
    trials: Trials = None,
    workers: Workers = 1,
    sampler: Sampler = None,
    pruner: Pruner = "none",
    storage: Storage = "",
    sampler_seed: SweepSeed = 0,
    sweep_dir: SweepDir = None,
    resume_best: ResumeBest = 0,
    on: On = "local",
    config_files: ConfigFiles = None,
    config_dir: options.ConfigDir = None,
    imports: options.Imports = None,
    backend: options.ProjectBackend = None,
    project_root: options.ProjectRoot = ".",
    data_dir: options.DataDir = None,
    gpu_type: options.GpuType = "any",
    hours: options.Hours = 2.0,
    mem: options.Mem = 12288,
    n_cpu: options.NumCpu = 1,
    email: options.Email = "",
    address: options.Address = None,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Try many values; run again, it resumes.

    Each trial is a run of its own, in a process of its own. Killed trials resume from their checkpoints; none is lost,
    none runs twice. A page in the sweep's directory shows them while they run.
    """
    executors.require_executor(on)
    sweeping.require_workers(workers)
    given = [*([name] if name is not None and "=" in name else []), *(words or [])]
    name = None if name is not None and "=" in name else name
    for word in given:
        if "=" not in word and not word.startswith("~"):
            raise UsageError("unexpected argument", key="KEY=VALUES", received=word, remedy="write key=1,2,3")
    found = create_space(space, [word for word in given if "=" in word and is_swept(word)])
    fixed = [word for word in given if "=" not in word or not is_swept(word)]
    if backend:
        choose_backend(backend)
    root = Path(project_root).expanduser().resolve()
    request = TargetRequest(name, found, fixed, root, backend, data_dir)
    chosen = choose_target(request, imports or (), config_files or (), config_dir)
    metrics, modes = metric or chosen.metrics, mode or (chosen.modes if not metric else ["min"])
    modes = list(modes) * len(metrics) if len(modes) == 1 else list(modes)
    if sampler is None and space is None and not resume_best:
        sampler = _for_words(chosen.space)
    wanted = (
        chosen.target
        if resume_best
        else dataclasses.replace(chosen.target, words=(*chosen.target.words, *chosen.fixed))
    )
    settings: dict[str, Any] = {"sampler": sampler or "tpe", "pruner": pruner, "seed": sampler_seed}
    definition = Definition(wanted, chosen.space, tuple(metrics), tuple(modes), storage=storage, **settings)
    definition = sweeping.with_usual_values(definition, sampler, trials, sweep_dir)
    if dry_run:
        target.check_space(chosen.space, chosen.check)
        print_last(_plan(definition))
        return
    study = sweeping.open_sweep(definition, sweep_dir, chosen.check, resume_best > 0)
    longer = sweeping.continue_best(study, resume_best, chosen.fixed)
    sweeping.repeat_failed(study, resume_best)
    if on != "local":
        from everstep.submit import slurm

        resources = slurm.Resources(gpu_type, hours, mem, n_cpu, email)
        print(_submitted(study, on, workers, longer, resources, address))
        return
    sweeping.run_local(study, workers, longer)
    result = sweeping.Study(study)
    if json:
        print_json(result.summary())
    else:
        print_last(_summary(result))
    result.require_complete()


_OPTIONS = ("sampler", "trials", "workers", "pruner", "metric", "storage")


def _refuse_options_as_words(words: Sequence[str]) -> None:
    """Refuses `sampler=grid` for `--sampler grid`: the keys of an experiment have dots.

    Raises:
      UsageError: A word is an option without its dashes.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in _OPTIONS:
            raise UsageError("is an option, not a key", key=key, received=value, remedy=f"write --{key} {value}")


def _for_words(space: Space) -> str:
    """Returns the sampler of a space without a file: all of it where values are listed, as `-m` of Hydra does."""
    listed = (one.points() is not None and "interval(" not in one.origin for one in space.dimensions)
    return "grid" if all(listed) else "tpe"


def choose_target(
    request: TargetRequest,
    imports: Sequence[str] = (),
    config_files: Sequence[str] = (),
    config_dir: str | None = None,
) -> SweepChoice:
    """Returns what a name means: a registered experiment, else what a kind of targets that is registered finds.

    Raises:
      UsageError: It means nothing; lists what there is.
    """
    import_modules(imports)
    load_entry_points()
    name = request.name
    if name in experiments():
        _refuse_options_as_words(request.fixed)
        files = [word for file in config_files for word in ("--config-file", str(Path(file).resolve()))]
        files += ["--config-dir", str(Path(config_dir).resolve())] if config_dir else []
        modules = [word for module in imports for word in ("--import", module)]
        words = (*modules, *files, *request.backend_words, "--no-export")
        swept = target.ExperimentTarget(name, words, str(Path.cwd()))
        check = target.experiment_check(
            request.space,
            request.fixed,
            experiment=name,
            config_files=list(config_files) or None,
            config_dir=config_dir,
            backend=request.backend,
            imports=list(imports) or None,
        )
        return SweepChoice(swept, request.space, request.fixed, check, [swept.metric])
    kinds = target.target_kinds()
    for kind in kinds:
        if (chosen := kind.choose(request)) is not None:
            return chosen
    if name is None:
        raise UsageError("no target is given", key="TARGET", remedy="everstep sweep TARGET --space FILE")
    raise UsageError(
        "is no script (train.py), no registered experiment, no folder in runs/ and no task of a project",
        key="TARGET",
        received=name,
        remedy=nearest(name, [*experiments(), *(one for kind in kinds for one in kind.names(request.root))]),
    )


def sweep_choice(chosen: SweepChoice, sweep_dir: str | None) -> None:
    """Runs every combination of the values on a command line, one after the other; prints the summary.

    Raises:
      UsageError: The configuration does not take them, or the directory has another sweep.
      TrainingError: A trial failed; the others are done.
    """
    wanted = dataclasses.replace(chosen.target, words=(*chosen.target.words, *chosen.fixed))
    sampler = _for_words(chosen.space)
    trials = len(chosen.space.grid()) if sampler == "grid" else sweeping.TRIALS
    modes = tuple(chosen.modes)
    definition = Definition(wanted, chosen.space, tuple(chosen.metrics), modes, sampler=sampler, trials=trials)
    study = sweeping.open_sweep(definition, sweep_dir, chosen.check)
    sweeping.repeat_failed(study)
    sweeping.run_local(study)
    result = sweeping.Study(study)
    print_last(_summary(result))
    result.require_complete()


def _plan(definition: Definition) -> str:
    """Returns what would be run: of a grid, its first points."""
    rows = [("target", definition.target.name), ("metric", definition.shown_metric), ("trials", str(definition.trials))]
    rows += [(one.key, _range(one)) for one in definition.space.dimensions]
    if definition.sampler == "grid":
        points = definition.space.grid()
        rows += [(f"trial {place}", " ".join(definition.space.words(point))) for place, point in enumerate(points[:10])]
    return aligned([*rows, ("sampler", definition.sampler)])


def _range(dimension: Any) -> str:
    if dimension.kind == "categorical":
        return ", ".join(map(str, dimension.choices))
    step = f" by {dimension.step:g}" if dimension.step else ""
    return f"{dimension.low:g} to {dimension.high:g}{step}{', log' if dimension.log else ''}"


def _submitted(
    study: SweepStudy, on: str, workers: int, longer: Sequence[str], resources: Any, address: str | None
) -> str:
    from everstep.sweeps import clusters

    if on == "slurm":
        job = clusters.submit_slurm(study.directory, workers, longer, resources)
        stop = f"scancel {job}"
    else:
        jobs = clusters.submit_ray(study.directory, workers, longer, address, resources)
        job, stop = " ".join(jobs), "; ".join(f"ray job stop {one}" for one in jobs)
    rows = [("job", f"{job} ({on}, {workers} workers)"), ("sweep", str(study.directory)), ("to end it", stop)]
    return aligned([*rows, ("page", str(study.directory / "sweep.html"))])


def _summary(study: sweeping.Study) -> str:
    found = study.summary()
    rows = [("sweep", str(study.directory))]
    states = [row["state"] for row in found["trials"]]
    counts = [f"{states.count(name)} {shown}" for name, shown in _STATES.items() if name in states]
    rows.append(("trials", ", ".join(counts)))
    if found["steps_saved"]:
        rows.append(("steps saved", f"{found['steps_saved']} by pruning"))
    if found["front"]:
        rows.append(("front", ", ".join(map(str, found["front"]))))
    if found["best"] is not None:
        best = study.best
        rows += [("best", f"trial {best.number}, {best.directory}")]
        names = found["metrics"] or ["loss"]  # as earlier versions left it open
        rows += [(name, number(value)) for name, value in zip(names, best.results, strict=True)]
        rows += [(key, str(value)) for key, value in best.values.items()]
    return aligned([*rows, ("page", str(study.page))])


_STATES = {"complete": "complete", "pruned": "pruned", "fail": "failed", "running": "unfinished", "waiting": "waiting"}
