"""A real Slurm of one node, run as ordinary processes in a folder."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")

CONF = """
ClusterName=everstep
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=0
KillWait=15
MailProg=/bin/true
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Returns why a cluster cannot run here; empty if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin") is None]
    if missing:
        return f"no {missing[0]} on this machine (apt-get install slurm-wlm)"
    return "" if Path("/proc/self").owner() == "root" else "slurmd needs root"


@contextlib.contextmanager
def cluster(folder: Path, cpus: int = 1, memory: int = 200) -> Iterator[Path]:
    """Runs it, on loopback; yields its configuration file, for `SLURM_CONF`."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, ports=_free_ports(), cpus=cpus, memory=memory))
    daemons = [_start(name, conf) for name in ("slurmctld", "slurmd")]
    try:
        _wait(conf, folder)
        yield conf
    finally:
        _end_jobs(conf)  # a job that cannot tell the controller its end would stay, and slurmd with it
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _start(name: str, conf: Path) -> subprocess.Popen:
    with open(conf.parent / f"{name}.out", "w") as out:
        return subprocess.Popen([f"/usr/sbin/{name}", "-D", "-f", str(conf)], stdout=out, stderr=out)


def _wait(conf: Path, folder: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if _printed(conf, "sinfo", "--noheader", "--format", "%T") == "idle":
            return
        time.sleep(0.2)
    raise RuntimeError("\n".join(path.read_text() for path in folder.glob("slurm*.out")))


def _end_jobs(conf: Path) -> None:
    _printed(conf, "scancel", "--user=root")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _printed(conf, "squeue", "--noheader"):
        time.sleep(0.2)


def _printed(conf: Path, *command: str) -> str:
    environment = {"SLURM_CONF": str(conf), "PATH": "/usr/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()


def _free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
