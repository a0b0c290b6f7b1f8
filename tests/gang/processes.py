"""The same code as several real processes of a gang on this machine."""

import os
import socket
import subprocess
import sys
import textwrap

from everstep import gang

_BEGIN = """
import json, os, sys, time
from everstep import gang
from everstep.errors import UsageError
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Processes:
    """Starts the same code as several processes, each with its coordinates."""

    def __init__(self, code: str, size: int, ranks: list[int] | None = None, port: int | None = None, **variables: str):
        code, port = _BEGIN + textwrap.dedent(code), port or free_port()
        self.all = {
            rank: subprocess.Popen(
                [sys.executable, "-c", code],
                env={
                    **os.environ,
                    gang.COORDINATOR: f"127.0.0.1:{port}",
                    gang.PROCESS_ID: str(rank),
                    gang.NUM_PROCESSES: str(size),
                    gang.JOIN_SECONDS: "60",
                    **variables,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # else the end of the shell that started the tests would wake a stopped one
            )
            for rank in (range(size) if ranks is None else ranks)
        }

    def results(self, timeout: float = 120) -> dict[int, tuple[int, str, str]]:
        """Returns exit code, output and errors of each."""
        try:
            out = {rank: one.communicate(timeout=timeout) for rank, one in self.all.items()}
        finally:
            self.kill()
        return {rank: (one.returncode, *out[rank]) for rank, one in self.all.items()}

    def kill(self) -> None:
        for one in self.all.values():
            if one.poll() is None:
                one.kill()
            for pipe in (one.stdout, one.stderr):
                pipe.close()
            one.wait()
