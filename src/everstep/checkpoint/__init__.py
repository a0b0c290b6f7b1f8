"""Checkpoints: the state of a run on disk, each one complete or invisible.

checkpointer.py     the interface: save, wait, restore, newest step; what a run without checkpoints does
complete.py         which checkpoints a run has and which folder is whole (the name and `manifest.json`), the newest;
                    a step that is being replaced
digests.py          one digest of a whole state, to compare runs bit by bit; digests of files are in `manifest.py`
orbax.py            writes in the background, one save at a time (the loop waits in `loop/saver.py`), under a temporary
                    name; verifies when it restores, sets a damaged checkpoint aside and takes the one before; removes
                    what `retention.py` does not keep; refuses another run's
arrays.py           how the arrays and the JSON document of one checkpoint are written and read, the large ones by
                    Orbax, without compression; Orbax's log lines are dropped
orbax_internals.py  what is used of Orbax's private modules
parts.py            arrays below 4 MiB, and those that are divided over several processes: their files, their limits,
                    whether all parts are there
shared.py           the checkpoints of several processes: the first one commits when all parts are there; all restore
                    the same step
visible.py          whether all processes see the same directory; waits 60 s for a shared file system, then refuses
manifest.py         `manifest.json`: format version, run, step, metrics, a SHA-256 of every file; what counts as
                    damaged; refuses a newer format
retention.py        which checkpoints are kept and which deleted: newest, every so many steps or seconds, best; at
                    least 2. The defaults (`max_to_keep`, `keep_best`) are in `loop/config.py`
base.py             frozen weights, written once per run in `base/`; when they are missing, damaged or no longer used;
                    those of a task (`Task.base_weights`) are compared in `engine/state.py`
partial_read.py     some arrays of a checkpoint that may not be trusted, for `init_checkpoint`; limits of size,
                    refuses archives that unpack to too much, and compressed arrays
averaging.py        the average of several checkpoints: which arrays are averaged, refuses those of other models;
                    which steps: `run/checkpoint_selection.py`
remote/             runs and data on `gs://`, `s3://`: upload, retries, one machine at a time
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.checkpoint import (
        arrays,
        base,
        manifest,
        partial_read,
        parts,
    )
    from everstep.checkpoint.averaging import write_average
    from everstep.checkpoint.checkpointer import (
        BASE_KEY,
        Checkpointer,
        NoopCheckpointer,
        SaveError,
    )
    from everstep.checkpoint.complete import (
        CHECKPOINTS,
        complete_checkpoints,
        newest_step,
        step_of,
    )
    from everstep.checkpoint.digests import (
        WEIGHTS,
        Digest,
        array_bytes,
        digest,
        weights_digest,
    )
    from everstep.checkpoint.manifest import (
        Base,
        Damaged,
    )
    from everstep.checkpoint.orbax import OrbaxCheckpointer
    from everstep.checkpoint.retention import (
        Entry,
        Retention,
    )
    from everstep.checkpoint.shared import SharedCheckpointer
    from everstep.checkpoint.visible import require_visible

__getattr__, __dir__ = lazy_names(__name__, __file__)
