"""`everstep submit`."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from everstep import storage
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.output import aligned
from everstep.cli.run import EvalOnly
from everstep.cli.running import choose_backend
from everstep.errors import UsageError, nearest
from everstep.launch.submit import background, on_ray, slurm, snapshot, submissions
from everstep.launch.submit.request import Request, any_command, project_run
from everstep.run.lock import RunLock

app = new_app()

ENGINES = ("background", "slurm", "ray")

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN_NAME | -- COMMAND...", help="A folder in runs/, or any command that trains."),
]
ProjectRoot = Annotated[str, typer.Option(metavar="DIR", help="The project of the run.")]
DataDir = Annotated[str | None, typer.Option(metavar="DIR", help="The data, in place of what the config file says.")]
ModelDir = Annotated[str | None, typer.Option(metavar="DIR", help="The run directory of a command after --.")]
Engine = Annotated[str, typer.Option(metavar="NAME", help="background, slurm or ray.")]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="How often it may be started again when it dies.")]
GpuType = Annotated[str, typer.Option(metavar="NAME", help="Slurm: p100, v100, t4, …; any, or none.")]
Hours = Annotated[float, typer.Option(metavar="H", help="Slurm: hours at a time; the next job resumes.")]
Mem = Annotated[int, typer.Option(metavar="MIB", help="Slurm: memory.")]
NumCpu = Annotated[int, typer.Option("--n-cpu", metavar="N", help="Slurm: processors.")]
Email = Annotated[str, typer.Option(metavar="ADDRESS", help="Slurm: who gets mail when it begins, ends or fails.")]
Address = Annotated[
    str | None, typer.Option(metavar="URL", help="Ray: the dashboard; by default $RAY_ADDRESS, or this machine's.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and do nothing.")]


@app.command(epilog="Example: everstep submit baseline --engine slurm --gpu-type v100 --hours 8")
def submit(
    context: typer.Context,
    words: Words = None,
    project_root: ProjectRoot = ".",
    data_dir: DataDir = None,
    model_dir: ModelDir = None,
    engine: Engine = "background",
    eval_only: EvalOnly = False,
    backend: options.ProjectBackend = None,
    allow_change: options.AllowChange = None,
    max_restarts: MaxRestarts = 10,
    gpu_type: GpuType = "any",
    hours: Hours = 2.0,
    mem: Mem = 12288,
    n_cpu: NumCpu = 1,
    email: Email = "",
    address: Address = None,
    dry_run: DryRun = False,
) -> None:
    """Run in the background, on Slurm or on Ray.

    Its config file and code are copied: edits while the job waits or trains do not change it. It is restarted when it
    dies, and saves when a stop is requested.
    """
    if engine not in ENGINES:
        raise UsageError("there is no such engine", key="--engine", received=engine, remedy=nearest(engine, ENGINES))
    if max_restarts < 0:
        raise UsageError("must be 0 or more", key="--max-restarts", received=max_restarts)
    resources = slurm.Resources(gpu_type, hours, mem, n_cpu, email)
    resources.check()
    more = _more(eval_only, backend, allow_change or ())
    request = _request(context.obj, words or [], project_root, data_dir, model_dir, more)
    if backend:
        choose_backend(backend)  # a wrong name fails now, not in the job
    folder = snapshot.place(request)
    if dry_run:
        print(_preview(request, folder, engine, resources, max_restarts), end="")
        return
    where = on_ray.address(address) if engine == "ray" else None
    submit_job = _engine(engine, request, folder, resources, max_restarts, where)
    _require_free(request)
    snapshot.take(request, folder, engine)
    try:
        job = submit_job()
    except UsageError:
        snapshot.discard(folder)
        raise
    snapshot.note_job(folder, job, where)
    print(_summary(request, folder, engine, job))


def _more(eval_only: bool, backend: str | None, allow_change: Sequence[str]) -> list[str]:
    """Returns the options that are passed on to `everstep run`."""
    words = ["--eval-only"] if eval_only else []
    words += ["--backend", backend] if backend else []
    return words + [word for key in allow_change for word in ("--allow-change", key)]


def _request(
    typed: list[str],
    words: list[str],
    project_root: str,
    data_dir: str | None,
    model_dir: str | None,
    more: list[str],
) -> Request:
    """Returns what is submitted: a run's name before a lone `--`, or a command after it."""
    command = typed[typed.index("--") + 1 :] if "--" in typed else []
    names = words[: len(words) - len(command)]
    if bool(command) == bool(names) or len(names) > 1:
        raise UsageError("expected one run, or a command after --", key="RUN_NAME", received=shlex.join(words))
    if command and more:
        raise UsageError("is an option of a project's run", key=more[0], remedy="put it into the command after --")
    if command:
        return any_command(command, model_dir, data_dir)
    if model_dir is not None:
        raise UsageError(
            f"a run of a project is in runs/{names[0]}", key="--model-dir", received=model_dir, remedy="omit it"
        )
    return project_run(names[0], project_root, data_dir, more)


def _engine(
    engine: str, request: Request, folder: Path, resources: slurm.Resources, max_restarts: int, where: str | None
) -> Callable[[], str]:
    """Returns the function that submits the job; fails if the engine cannot take it."""
    if engine == "slurm":
        slurm.require()
        slurm.require_room()
        return lambda: slurm.submit(request, folder, resources, max_restarts)
    if where is not None:
        client = on_ray.connect(where)
        return lambda: on_ray.submit(client, request, folder, max_restarts)
    return lambda: background.start(request, folder, max_restarts)


def _require_free(request: Request) -> None:
    """Fails if the run is under way."""
    storage.prepare_directory(request.directory)
    submissions.require_none_under_way(request.directory)
    with RunLock(request.directory):
        pass


def _preview(request: Request, folder: Path, engine: str, resources: slurm.Resources, max_restarts: int) -> str:
    if engine == "slurm":
        return slurm.job_text(request, folder, resources, max_restarts)
    return shlex.join(background.job_command(request, folder, max_restarts)) + "\n"


def _summary(request: Request, folder: Path, engine: str, job: str) -> str:
    rows = [("job", f"{job} ({engine})"), ("run", str(request.directory)), ("snapshot", str(folder))]
    if engine == "slurm":
        rows.append(("job file", str(slurm.job_file(request))))
    rows.append(("log", f"ray job logs {job}" if engine == "ray" else str(background.log(request, job))))
    found = submissions.newest(request.directory)
    rows += [("to end it", found.how_to_end)] if found is not None else []
    return aligned([*rows, ("to see it", f"everstep runs {shlex.quote(str(request.directory.parent))}")])
