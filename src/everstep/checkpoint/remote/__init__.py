"""Runs and data on object stores: `gs://`, `s3://`, any URL that fsspec knows.

A run whose directory is a URL trains in a local copy, so no step waits for the network. A thread uploads what is
complete, and the next attempt, on any machine, starts from what the store has.

urls.py        which URLs are valid (no credentials in them), how fsspec opens them; EVERSTEP_STORE_TIMEOUT,
               _UPLOAD_SECONDS and _UPLOAD_PATIENCE with their defaults
store.py       upload and download of single objects: how often and after which pause it is tried again, which errors
               are final, checksums; `mirror.py` goes on trying after it gives up
layout.py      what belongs together in a run directory and in the store; which files are uploaded, in which order
               they make others complete; hidden and damaged ones are not
cache.py       local copies (EVERSTEP_CACHE_DIR): where they are; fetches the newest checkpoint that is not damaged,
               skips damaged ones; how a copy is moved aside (when: `mirror.py`)
lease.py       one machine at a time trains a run in a store: how long a lease of a dead machine is waited for,
               refuses "is being trained by"
mirror.py      uploads a run in a thread: when (a checkpoint at once, other files at intervals), order, pauses after a
               failure; removes from the store what retention has removed; at the start, whether the local copy or the
               store is ahead
run_copies.py  a local directory for a run at a URL: to train in, or read only; waits at the end for uploads; lists
               the runs below a URL
files.py       data files at a URL: fetched once, verified, again if they have changed; results that are published
               there, with retries
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.checkpoint.remote import cache
    from everstep.checkpoint.remote.files import (
        is_known,
        local_files,
        publish,
        require_writable,
        stored_names,
    )
    from everstep.checkpoint.remote.layout import (
        OWN,
        register_progress_files,
    )
    from everstep.checkpoint.remote.lease import is_renewed
    from everstep.checkpoint.remote.run_copies import (
        local_runs,
        local_view,
        working_copy,
    )
    from everstep.checkpoint.remote.store import (
        Absent,
        Store,
        StoreError,
        brief,
        sha256,
    )
    from everstep.checkpoint.remote.urls import (
        checked,
        is_url,
        join,
        refuse_lost_slash,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
