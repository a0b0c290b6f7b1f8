"""The supervised command as a step of Slurm: `srun` starts it as several processes on the machines of an allocation.

Each process finds its coordinates in Slurm's variables (`everstep.gang`). When one dies, Slurm ends the others: they
get SIGTERM, and after the cluster's KillWait SIGKILL. The supervisor then starts the next step in the same allocation.
"""

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from everstep.errors import UsageError
from everstep.launch.child import Child, ExitStatus
from everstep.launch.child_gang import ProcessCount

_SECONDS_TO_ANSWER = 20.0
_TASK_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<rank>[\d,-]+): (?P<how>.+)")
_EXITED = "Exited with exit code "


class SlurmGang(Child):
    """Several processes of one command on the machines of an allocation; to a supervisor, it is one child.

    Args:
      command: Program and arguments.
      environment: The environment of the processes, with Slurm's variables.
      count: How many processes to start; an elastic gang takes the tasks of the allocation.

    Raises:
      UsageError: This is no allocation, or it has fewer tasks.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], count: ProcessCount) -> None:
        self._job = environment.get("SLURM_JOB_ID", "")
        if not self._job or shutil.which("srun") is None:
            raise UsageError(
                "this is not an allocation of Slurm (SLURM_JOB_ID is not set, or there is no srun)",
                key="--on",
                received="slurm",
                remedy=f"salloc --ntasks={count.most} gets one; everstep submit --on slurm queues a job",
            )
        tasks = int(environment.get("SLURM_NTASKS") or count.most)
        if tasks < count.least:
            remedy = f"request --ntasks={count.least}"
            raise UsageError(f"the allocation has {tasks} tasks", key="--processes", received=str(count), remedy=remedy)
        count.say_if_fewer(tasks)
        srun = ["srun", "--kill-on-bad-exit=1", f"--ntasks={count.limited_to(tasks)}"]
        if cpus := environment.get("SLURM_CPUS_PER_TASK"):  # which srun itself does not read since Slurm 22.05
            srun.append(f"--cpus-per-task={cpus}")
        super().__init__([*srun, *command], environment)

    def send(self, number: int) -> None:
        """Lets Slurm send a signal to every process: srun would not pass SIGTERM on, but kill them."""
        name = signal.Signals(number).name.removeprefix("SIG")
        command = ["scancel", f"--signal={name}", self._job]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, capture_output=True, timeout=_SECONDS_TO_ANSWER, check=False)

    def wait(self) -> ExitStatus:
        """Waits for the end of all processes; returns how the one ended because of which the others did.

        The exit code of srun is the largest of all, and those that Slurm ended have large ones: what srun prints first
        is the cause.
        """
        status = super().wait()
        ends = [found for line in self.last_lines(200) if (found := _TASK_ENDED.match(line))]
        if status.returncode == 0 or not ends:
            return status
        code = _returncode(ends[0]["how"])
        who = f"rank {ends[0]['rank']} (on {ends[0]['host']})"
        return status if code is None else ExitStatus(code, who)


def _returncode(how: str) -> int | None:
    """Returns the exit code, or the negative number of the signal, that srun spells out; None if it is neither."""
    if how.startswith(_EXITED):
        return int(how.removeprefix(_EXITED))
    return next((-one for one in signal.valid_signals() if how.partition(" (")[0] == signal.strsignal(one)), None)
