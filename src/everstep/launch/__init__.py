"""Starting runs in processes of their own.

supervisor.py  restarts a command that dies: how often, after a pause that doubles up to a minute; not after bad input
               or a stop; gives up after 3 restarts without progress
child.py       the command while it runs: signals passed on, 30 s before SIGKILL, what exit codes and signals mean,
               the last lines of its output
progress.py    how far its run is, as the supervisor sees it; the reason of a killed attempt
child_gang.py  the command as several processes: environment and GPUs of each, how many (`2..8`); one that died or is
               frozen (30 s) is named, the others end within 10 s; logs of each
slurm_gang.py  the same by `srun`, in an allocation
ray_gang.py    the same by Ray: places, CPUs and GPUs of each, which variables are passed on, a lost node
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.launch.child import (
        Child,
        ExitStatus,
        SignalForwarding,
    )
    from everstep.launch.child_gang import (
        LocalGang,
        ProcessCount,
    )
    from everstep.launch.progress import record_exit_reason
    from everstep.launch.ray_gang import RayCluster
    from everstep.launch.slurm_gang import SlurmGang
    from everstep.launch.supervisor import supervise

__getattr__, __dir__ = lazy_names(__name__, __file__)
