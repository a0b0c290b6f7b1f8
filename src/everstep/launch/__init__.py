"""Starting runs in processes of their own.

supervisor.py  restarts a command that dies, as long as restarts make progress
child.py       the command while it runs
progress.py    how far its run is
child_gang.py  the command as several processes; one that died or is frozen is named, and all end
slurm_gang.py  the same by Slurm
ray_gang.py    the same by Ray
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.launch.child import ExitStatus
    from everstep.launch.child_gang import (
        LocalGang,
        ProcessCount,
    )
    from everstep.launch.progress import record_exit_reason
    from everstep.launch.ray_gang import RayCluster
    from everstep.launch.slurm_gang import SlurmGang
    from everstep.launch.supervisor import supervise

__getattr__, __dir__ = lazy_names(__name__, __file__)
