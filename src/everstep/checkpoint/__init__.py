"""Checkpoints: the state of a run on disk, each one complete or invisible.

checkpointer.py     the interface: save, wait, restore
complete.py         which checkpoints a run has, and the newest, for those who only look
digests.py          one digest of a whole state, to compare runs; files are checked by `manifest.py`
orbax.py            the checkpointer that writes, in the background, and verifies; skips damaged ones when it restores
arrays.py           the arrays and the JSON document of one checkpoint, the large ones by Orbax
orbax_internals.py  what is used of Orbax's private modules
parts.py            arrays in parts: small ones, and those that are divided over several processes
shared.py           the checkpoints of several processes
visible.py          whether all of them see the same directory
manifest.py         what was saved, by which run, and a digest of every file
retention.py        which checkpoints are kept
base.py             weights that no step changes, written once per run
partial_read.py     some arrays of a checkpoint that may not be trusted
averaging.py        the average of several checkpoints
remote/             runs and data on object stores
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
