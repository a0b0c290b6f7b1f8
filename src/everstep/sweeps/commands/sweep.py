"""`everstep sweep`."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep import redaction
from everstep.cli import aligned, choose_backend, import_modules, new_app, number, options, print_last, quiet, resolve
from everstep.config import experiments, load_entry_points
from everstep.errors import UsageError, nearest
from everstep.storage import json_text
from everstep.sweeps import (
    PRUNERS,
    SAMPLERS,
    Check,
    Definition,
    Space,
    SweepStudy,
    Target,
    Values,
    create_space,
    executors,
    is_swept,
    sweeping,
    target,
)

if TYPE_CHECKING:
    from everstep.projects.flow import FlowProject

app = new_app()

Name = Annotated[
    str | None,
    typer.Argument(metavar="TARGET", help="An experiment, a task of a flow's project, or a folder in runs/."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUES", help="key=1,2,3 or key=range(1,5) varies a key; key=1 sets it in every trial."
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
Sampler = Annotated[str | None, typer.Option(metavar="NAME", help=f"{', '.join(SAMPLERS)}; tpe, without --space grid.")]
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
    chosen = choose_target(
        name, found, fixed, project_root, data_dir, imports or (), config_files or (), config_dir, backend
    )
    metrics, modes = metric or chosen.metrics, mode or (chosen.modes if not metric else ["min"])
    modes = list(modes) * len(metrics) if len(modes) == 1 else list(modes)
    sampler = sampler or ("tpe" if space is not None or resume_best else _for_words(chosen.space))
    if trials is None:
        trials = len(chosen.space.grid()) if sampler == "grid" else 20
    wanted = (
        chosen.target
        if resume_best
        else dataclasses.replace(chosen.target, words=(*chosen.target.words, *chosen.fixed))
    )
    settings: dict[str, Any] = {"sampler": sampler, "pruner": pruner, "seed": sampler_seed}
    settings |= {"trials": trials, "storage": storage}
    definition = Definition(wanted, chosen.space, tuple(metrics), tuple(modes), **settings)
    if dry_run:
        target.check_space(chosen.space, chosen.check)
        print(_plan(definition))
        return
    study = sweeping.open_sweep(definition, sweep_dir, chosen.check, resume_best > 0)
    longer = sweeping.continue_best(study, resume_best, chosen.fixed)
    if on != "local":
        from everstep.submit import slurm

        resources = slurm.Resources(gpu_type, hours, mem, n_cpu, email)
        print(_submitted(study, on, workers, longer, resources, address))
        return
    sweeping.run_local(study, workers, longer)
    result = sweeping.Study(study)
    print_last(redaction.text(json_text(result.summary()) if json else _summary(result)))
    result.require_complete()


def _for_words(space: Space) -> str:
    """Returns the sampler of a space without a file: all of it where values are listed, as `-m` of Hydra does."""
    listed = (one.points() is not None and "interval(" not in one.origin for one in space.dimensions)
    return "grid" if all(listed) else "tpe"


@dataclasses.dataclass(frozen=True)
class SweepChoice:
    """What is swept, and how it is checked.

    Attributes:
      target: The target, without its fixed values.
      space: The space, under the names of the target.
      fixed: Values that are the same in all trials, as words.
      check: Raises UsageError if the configuration does not take values.
      metrics: The metrics to optimise, if none is named.
      modes: Their modes.
    """

    target: Target
    space: Space
    fixed: Sequence[str]
    check: Check
    metrics: Sequence[str]
    modes: Sequence[str] = ("min",)


def choose_target(
    name: str | None,
    space: Space,
    fixed: Sequence[str],
    project_root: str = ".",
    data_dir: str | None = None,
    imports: Sequence[str] = (),
    config_files: Sequence[str] = (),
    config_dir: str | None = None,
    backend: str | None = None,
) -> SweepChoice:
    """Returns what a name means: a registered experiment, else a run of components, else a task of a flow's project.

    Raises:
      UsageError: It means nothing; lists what there is.
    """
    root = Path(project_root).expanduser().resolve()
    own, named = target.component_space(space)
    name = name or named
    if name is None:
        raise UsageError("no target is given", key="TARGET", remedy="everstep sweep TARGET --space FILE")
    option = ["--backend", backend] if backend else []
    import_modules(imports)
    load_entry_points()
    if name in experiments():
        files = [word for file in config_files for word in ("--config-file", str(Path(file).resolve()))]
        files += ["--config-dir", str(Path(config_dir).resolve())] if config_dir else []
        words = (*(word for module in imports for word in ("--import", module)), *files, *option, "--no-export")
        check = _experiment_check(name, space, fixed, imports, config_files, config_dir, backend)
        return SweepChoice(Target("experiment", name, words, str(Path.cwd())), space, fixed, check, ["validation_loss"])
    if (root / "runs" / name).is_dir():
        from everstep.projects.components import find_config

        find_config(root / "runs" / name)
        if not own.dimensions:  # a list of metrics is one value
            raise UsageError(
                "is empty: no key varies", key="--space", remedy="list values in a file, or write key=1,2,3"
            )
        if fixed:
            extra = {key: value for word in fixed for key, value in [_pair(word)]}
            own = dataclasses.replace(own, fixed={**own.fixed, **extra})
        data = ["--data-dir", str(Path(data_dir).resolve())] if data_dir else []
        swept = Target("components", name, (*option, *data), str(root))
        metric, mode = target.component_metric(root, name, own)
        return SweepChoice(swept, own, (), target.component_check(root, name, own), [metric], [mode])
    from everstep.projects.flow import FlowProject

    home, tasks = None, list[str]()
    with contextlib.suppress(UsageError):  # no project
        home = FlowProject.find(root)
    if home is not None:
        with quiet():
            home.load()
        tasks = list(home.tasks())
        if name in tasks:
            return flow_target(name, space, fixed, home, option)
    raise UsageError(
        "is no registered experiment, no folder in runs/ and no task of a project",
        key="TARGET",
        received=name,
        remedy=nearest(name, [*experiments(), *_runs(root), *tasks]),
    )


def _runs(root: Path) -> list[str]:
    return [path.name for path in (root / "runs").glob("*") if any(path.glob("*.yaml"))]


def _pair(word: str) -> tuple[str, Any]:
    from everstep.config import parse_override

    return parse_override(word)


def _experiment_check(
    name: str,
    space: Space,
    fixed: Sequence[str],
    imports: Sequence[str],
    config_files: Sequence[str],
    config_dir: str | None,
    backend: str | None,
) -> Check:
    def check(values: Values) -> None:
        request = options.ExperimentRequest(
            experiment=name,
            overrides=[*fixed, *space.words(values)],
            config_files=list(config_files) or None,
            config_dir=config_dir,
            backend=backend,
            imports=list(imports) or None,
        )
        resolve(request)

    return check


def flow_target(
    name: str, space: Space, fixed: Sequence[str], home: "FlowProject", option: Sequence[str]
) -> SweepChoice:
    """Returns the target of a flow's task; its parameters may be named without it: `seed=1,2`.

    Raises:
      UsageError: There is no such task.
    """
    from everstep.projects.flow import PARAMETERS, chain_of, compose

    with quiet():
        home.load()
    cls = home.task(name)
    keys = [*(one.key for one in space.dimensions), *space.fixed]
    space = space.renamed({key: f"{name}.{key}" for key in keys if key in PARAMETERS})
    fixed = [f"{name}.{word}" if word.partition("=")[0] in PARAMETERS else word for word in fixed]
    chain = [base.__name__ for base in chain_of(cls)]
    tasks = list(dict.fromkeys([*home.tasks(), *chain[:-1]]))

    def check(values: Values) -> None:
        compose(home.root / "config", chain, tasks, [*fixed, *space.words(values)], home.name)

    return SweepChoice(Target("flow", name, tuple(option), str(home.root)), space, fixed, check, [""])


def sweep_flow(
    home: "FlowProject", name: str, words: Sequence[str], backend: str | None, model_dir: str | None
) -> None:
    """Runs `everstep flow NAME -m key=1,2 …`: every combination, one after the other; prints the summary.

    Raises:
      UsageError: No parameter has several values.
      TrainingError: A trial failed; the others are done.
    """
    swept = [word for word in words if "=" in word and is_swept(word)]
    if not swept:
        given = next((word for word in words if "=" in word), f"{name}.epoch=1")
        remedy = f"list values: {given},…; or omit -m"
        raise UsageError("no parameter has several values", key="-m", received=" ".join(words), remedy=remedy)
    space = create_space(None, swept)
    fixed = [word for word in words if "=" not in word or not is_swept(word)]
    chosen = flow_target(name, space, fixed, home, ["--backend", backend] if backend else [])
    wanted = dataclasses.replace(chosen.target, words=(*chosen.target.words, *chosen.fixed))
    sampler = _for_words(chosen.space)
    trials = len(chosen.space.grid()) if sampler == "grid" else 20
    definition = Definition(wanted, chosen.space, ("",), ("min",), sampler=sampler, trials=trials)
    study = sweeping.open_sweep(definition, model_dir, chosen.check)
    sweeping.run_local(study)
    result = sweeping.Study(study)
    print_last(redaction.text(_summary(result)))
    result.require_complete()


def _plan(definition: Definition) -> str:
    """Returns what would be run: of a grid, its first points."""
    rows = [("target", definition.target.name), ("metric", definition.shown_metric), ("trials", str(definition.trials))]
    rows += [(one.key, _range(one)) for one in definition.space.dimensions]
    if definition.sampler == "grid":
        points = definition.space.grid()
        rows += [(f"trial {place}", " ".join(definition.space.words(point))) for place, point in enumerate(points[:10])]
    return redaction.text(aligned([*rows, ("sampler", definition.sampler)]))


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
