"""`everstep submit`."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from everstep import storage
from everstep.cli import aligned, choose_backend, new_app, options
from everstep.errors import UsageError, nearest
from everstep.launch import ProcessCount
from everstep.run import RunLock
from everstep.submit import (
    SubmitRequest,
    any_command,
    background,
    kubernetes,
    project_run,
    ray,
    slurm,
    snapshot,
    submissions,
)

app = new_app()

EXECUTORS = ("background", "slurm", "ray", "kubernetes")

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN_NAME | -- COMMAND...", help="A folder in runs/, or any command that trains."),
]
ProjectRoot = Annotated[str, typer.Option(metavar="DIR", help="The project of the run.")]
DataDir = Annotated[str | None, typer.Option(metavar="DIR", help="The data, in place of the config file's.")]
ModelDir = Annotated[str | None, typer.Option(metavar="DIR", help="The run directory of a command after --.")]
On = Annotated[str, typer.Option("--on", metavar="NAME", help="Where it runs: background, slurm, ray or kubernetes.")]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="How often it may be restarted when it dies.")]
Processes = Annotated[
    str, typer.Option(metavar="N", help="How many processes train the run together; each gets the resources below.")
]
Image = Annotated[str | None, typer.Option(metavar="NAME", help="Kubernetes: the container image, with the code.")]
Volume = Annotated[
    str | None, typer.Option(metavar="CLAIM:PATH", help="Kubernetes: a volume for all pods, and where it is mounted.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and do nothing.")]


@app.command(epilog="Example: everstep submit baseline --on slurm --gpu-type v100 --hours 8")
def submit(
    context: typer.Context,
    words: Words = None,
    project_root: ProjectRoot = ".",
    data_dir: DataDir = None,
    model_dir: ModelDir = None,
    executor: On = "background",
    eval_only: options.EvalOnly = False,
    backend: options.ProjectBackend = None,
    allow_change: options.AllowChange = None,
    max_restarts: MaxRestarts = 10,
    processes: Processes = "1",
    gpu_type: options.GpuType = "any",
    hours: options.Hours = 2.0,
    mem: options.Mem = 12288,
    n_cpu: options.NumCpu = 1,
    email: options.Email = "",
    address: options.Address = None,
    image: Image = None,
    volume: Volume = None,
    dry_run: DryRun = False,
) -> None:
    """Run in the background, on Slurm or on Ray.

    Its config file and code are copied: edits while the job waits or trains do not change it. It is restarted when it
    dies, and saves when a stop is requested. For Kubernetes a manifest is printed, with --dry-run; nothing is copied.
    """
    if executor not in EXECUTORS:
        remedy = nearest(executor, EXECUTORS)
        raise UsageError("there is no such executor", key="--on", received=executor, remedy=remedy)
    if max_restarts < 0:
        raise UsageError("must be 0 or more", key="--max-restarts", received=max_restarts)
    count = ProcessCount.parse(processes)
    if count.least != count.most and executor in ("slurm", "kubernetes"):
        raise UsageError("expected one number", key="--processes", received=processes)
    resources = slurm.Resources(gpu_type, hours, mem, n_cpu, email, count.most)
    resources.check()
    if executor == "kubernetes":
        _require_dry_run(dry_run)
        command = _command_for_image(context.obj, words or [])
        print(kubernetes.manifest(command, model_dir, image, volume, resources, max_restarts), end="")
        return
    run_options = ["--eval-only"] if eval_only else []
    run_options += ["--backend", backend] if backend else []
    run_options += [word for key in allow_change or () for word in ("--allow-change", key)]
    request = _request(context.obj, words or [], project_root, data_dir, model_dir, run_options)
    if backend:
        choose_backend(backend)  # a wrong name fails now, not in the job
    folder = snapshot.place(request)
    of_gang = _options_of_gang(executor, count)
    if dry_run:
        text = shlex.join(request.job_command(folder, max_restarts, *of_gang)) + "\n"
        is_slurm = executor == "slurm"
        print(slurm.job_text(request, folder, resources, max_restarts) if is_slurm else text, end="")
        return
    dashboard = ray.dashboard_address(address) if executor == "ray" else None
    submit_job = _executor(executor, request, folder, resources, max_restarts, of_gang, dashboard)
    storage.prepare_directory(request.directory)
    submissions.require_not_submitted(request.directory)
    with RunLock(request.directory):  # fails if the run is being trained
        pass
    snapshot.take(request, folder, executor)
    try:
        job = submit_job()
    except UsageError:
        snapshot.discard(folder)
        raise
    snapshot.record_job(folder, job, dashboard)
    print(_summary(request, folder, executor, job))


def _request(
    typed: list[str],
    words: list[str],
    project_root: str,
    data_dir: str | None,
    model_dir: str | None,
    run_options: list[str],
) -> SubmitRequest:
    """Returns what is submitted: a run's name before a lone `--`, or a command after it."""
    command = typed[typed.index("--") + 1 :] if "--" in typed else []
    names = words[: len(words) - len(command)]
    if bool(command) == bool(names) or len(names) > 1:
        raise UsageError("expected one run, or a command after --", key="RUN_NAME", received=shlex.join(words))
    if command and run_options:
        raise UsageError(
            "is an option of a project's run", key=run_options[0], remedy="put it into the command after --"
        )
    if command:
        return any_command(command, model_dir, data_dir)
    if model_dir is not None:
        raise UsageError(
            f"a run of a project is in runs/{names[0]}", key="--model-dir", received=model_dir, remedy="omit it"
        )
    return project_run(names[0], project_root, data_dir, run_options)


def _executor(
    name: str,
    request: SubmitRequest,
    folder: Path,
    resources: slurm.Resources,
    max_restarts: int,
    of_gang: list[str],
    dashboard: str | None,
) -> Callable[[], str]:
    """Returns the function that submits the job; fails if the executor cannot run it."""
    if name == "slurm":
        slurm.require_slurm()
        return lambda: slurm.submit(request, folder, resources, max_restarts)
    if dashboard is not None:
        client = ray.connect(dashboard)
        return lambda: ray.submit(client, request, folder, max_restarts, of_gang)
    return lambda: background.start(request, folder, max_restarts, of_gang)


def _options_of_gang(executor: str, count: ProcessCount) -> list[str]:
    """Returns the options of `everstep launch` in the job, if several processes train together."""
    if count.most == 1:
        return []
    return [*(["--on", executor] if executor != "background" else []), "--processes", str(count)]


def _require_dry_run(dry_run: bool) -> None:
    if not dry_run:
        raise UsageError(
            "only prints a manifest",
            key="--on",
            received="kubernetes",
            remedy="add --dry-run, and pass what it prints to: kubectl apply -f -",
        )


def _command_for_image(typed: list[str], words: list[str]) -> list[str]:
    """Returns the command after a lone `--`, as it is: its program and files are those of the image."""
    command = typed[typed.index("--") + 1 :] if "--" in typed else []
    if not command or len(command) != len(words):
        raise UsageError(
            "on Kubernetes the image has the files: expected a command after --",
            key="RUN_NAME",
            received=shlex.join(words),
            remedy="write it as in: -- everstep train mnist/mlp --model-dir /runs/mlp",
        )
    return command


def _summary(request: SubmitRequest, folder: Path, executor: str, job: str) -> str:
    rows = [("job", f"{job} ({executor})"), ("run", str(request.directory)), ("snapshot", str(folder))]
    if executor == "slurm":
        rows.append(("job file", str(slurm.job_file(request))))
    rows.append(("log", f"ray job logs {job}" if executor == "ray" else str(request.log_file(job))))
    found = submissions.newest(request.directory)
    rows += [("to end it", found.stop_command)] if found is not None else []
    return aligned([*rows, ("to see it", f"everstep runs {shlex.quote(str(request.directory.parent))}")])
