"""Keys that the runtime section has in TF Model Garden and not here. Imports no Keras."""

from everstep.config.declined import Declined

_NOBODY = "nothing reads it, in Model Garden neither"
_THREADS = f"threads are the backend's to share out, and {_NOBODY}"
_MACHINES = "a run is on one machine"
_CORES = "a replica is one core, and the batch is what is split"

DECLINED = {
    "gpu_thread_mode": Declined(_THREADS),
    "dataset_num_private_threads": Declined(_THREADS),
    "per_gpu_thread_count": Declined(_THREADS, 0),
    "worker_hosts": Declined(_MACHINES),
    "task_index": Declined(_MACHINES, -1),
    "num_packs": Declined("the backend decides in how many pieces gradients are summed", 1),
    "run_eagerly": Declined("steps are always compiled", False),
    "batchnorm_spatial_persistent": Declined(_NOBODY, False),
    "tpu_enable_xla_dynamic_padder": Declined("batches of another shape are compiled for themselves, unpadded", False),
    "num_cores_per_replica": Declined(_CORES, 1),
    "default_shard_dim": Declined(_CORES, -1),
    "use_tpu_mp_strategy": Declined(_CORES, False),
}
"""Each key, the reason, and the values that ask for nothing."""
