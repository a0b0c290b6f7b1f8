"""Contenders in processes of their own: each may have its own interpreter, and they take turns.

A contender process calls `serve` with its functions, and stays idle until it is asked for a round. The runner starts
the processes of a suite, and asks one after the other: `alternate`. So other load on the machine affects all of them.

This file needs the standard library alone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Round = Callable[[], float]
"""Runs one round; returns the rate that it reached."""


def alternate(contenders: Mapping[str, Round], rounds: int) -> dict[str, list[float]]:
    """Runs the contenders in turn, every second time in reverse order; returns the values of each."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in reversed(names) if number % 2 else names:
            values[name].append(contenders[name]())
    return values


def serve(functions: Mapping[str, Callable[..., float]]) -> None:
    """Answers the runner until it closes standard input: a line with a name and arguments, a line with the result.

    What libraries print goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        value = functions[request["name"]](**request["arguments"])
        print(json.dumps(value), file=answers, flush=True)


class ContenderError(RuntimeError):
    """A contender's process has ended; the message has its last lines."""


class ContenderProcess:
    """A process that calls `serve`.

    Args:
      module: Its module, such as `benchmarks.keras_loops`.
      arguments: The command line of the module.
      python: Its interpreter; this one by default.
      device: Whether it may use an accelerator.
    """

    def __init__(self, module: str, *arguments: str, python: Path | None = None, device: bool = False) -> None:
        self._module = module
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if not device:
            environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        own = [str(ROOT)] if python else [str(ROOT / "src"), str(ROOT)]
        inherited = [] if python else [os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*own, *inherited]))
        self._process = subprocess.Popen(
            [str(python or sys.executable), "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def ask(self, name: str, **arguments: Any) -> Any:
        """Has it run one round of a function; returns the result.

        Raises:
          ContenderError: The process has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ContenderError(f"{self._module} has no pipes")
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._process.wait()
            self._log.seek(0)
            lines = self._log.read().decode("utf-8", errors="replace").splitlines()[-20:]
            raise ContenderError("\n".join([f"{self._module} failed in {name}:", *lines]))
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def processes(**started: ContenderProcess | None) -> Iterator[dict[str, ContenderProcess]]:
    """Yields the processes that exist by name, and ends them."""
    running = {name: process for name, process in started.items() if process is not None}
    try:
        yield running
    finally:
        for process in running.values():
            process.close()
