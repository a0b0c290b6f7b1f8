"""`python train.py --task Mnist_B`: the command line of a project's own program."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from everstep import redaction
from everstep.errors import UsageError, did_you_mean
from everstep.projects.flow.project import FlowProject
from everstep.projects.flow.running import run_flow
from everstep.projects.flow.settings import key_meant
from everstep.run import run_program, without_option
from everstep.tracking import value_text


def main(arguments: Sequence[str] | None = None, default: str | None = None) -> NoReturn:
    """Runs the task that the command line names, and ends the process with its exit code.

        if __name__ == "__main__":
            main()

    The exit codes are those of `everstep flow`: 0 done, 1 failed, 2 bad input, 130 and 143 interrupted after saving.
    The project is that of the program's file, whatever the working directory.

    Args:
      arguments: The words of the command line; by default this process's.
      default: The task to run if none is named.
    """
    sys.exit(_exit_code(sys.argv[1:] if arguments is None else arguments, default))


def _exit_code(words: Sequence[str], default: str | None) -> int:
    return run_program(lambda: _run(_parsed(without_option(words)), default), words)


def _run(options: Any, default: str | None) -> None:
    file = getattr(sys.modules["__main__"], "__file__", None)
    project = FlowProject.find(options.project or (Path(file).parent if file else None))
    _refuse_task_as_value(options.overrides)
    name = options.task or default
    if name is None:
        names = ", ".join(sorted(project.tasks())) or "none"
        raise UsageError("missing", key="--task", remedy=f"name a task: {names}")
    if options.multirun:
        _sweep(name, project, options)
    settings = {"model_dir": options.model_dir, "new": options.new, "backend": options.backend}
    done = run_flow(name, options.overrides, project, allow_change=options.allow_change, **settings)
    rows = [*((metric, value_text(value, 6)) for metric, value in done.metrics.items()), ("run", str(done.directory))]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(redaction.text(f"{name:<{width}}  {text}"))


def _refuse_task_as_value(words: Sequence[str]) -> None:
    """Refuses the name of a task where values are expected: `train.py Mnist_B`."""
    for word in words:
        if word.isidentifier() and not Path(word).is_file():
            raise UsageError("expected KEY=VALUE", received=word, remedy=f"a task is an option: --task {word}")


def _sweep(name: str, project: FlowProject, options: Any) -> NoReturn:
    """Hands over to `everstep flow NAME -m …`, in place of this process."""
    words = [*options.overrides, *(["--backend", options.backend] if options.backend else [])]
    words += ["--model-dir", options.model_dir] if options.model_dir else []
    command = [sys.executable, "-m", "everstep", "flow", name, "-m", "--project", str(project.root), *words]
    os.execv(sys.executable, command)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"{_meant(message)}see --help")


def _meant(message: str) -> str:
    """Returns what to write for a parameter that was given as an option: `--epochs 5`."""
    options = re.findall(r"(?<!\S)--([\w-]+)", message)
    if close := [near for option in options if (near := did_you_mean(f"--{option}", _OPTIONS, 1, 0.75))]:
        return f"{close[0]} "
    meant = [key_meant(option.replace("-", "_")) for option in options]
    written = " or ".join(f"{key}=…" for key in meant if key)
    return f"a value is written without dashes: {written}; " if written else ""


_OPTIONS = ("--task", "--backend", "--project", "--model-dir", "--new", "--allow-change", "--traceback", "--multirun")


def _parsed(words: Sequence[str]) -> Any:
    parser = _Parser(
        description="Run a task of this project.", allow_abbrev=False, epilog="Example: --task Mnist_B Mnist_B.epoch=1"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="values that win over all files: Mnist_B.epoch=1"
    )
    parser.add_argument("--task", metavar="NAME", help="the class of the task")
    parser.add_argument("--backend", metavar="NAME", help="tensorflow, jax or torch; by default $KERAS_BACKEND")
    parser.add_argument("--project", metavar="DIR", help="the project; by default that of this file")
    parser.add_argument("--model-dir", metavar="DIR", help="the run directory")
    parser.add_argument("--new", action="store_true", help="start a new run although one did not end")
    parser.add_argument(
        "--allow-change", metavar="KEY", action="append", default=[], help="resume although this key has changed"
    )
    parser.add_argument("--traceback", action="store_true", help="of errors, show every frame")
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of values: seed=1,2")
    options = parser.parse_intermixed_args(list(words))
    return options
