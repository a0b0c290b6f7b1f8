"""Runs and data on object stores: `gs://`, `s3://`, any URL that fsspec knows.

A run whose directory is a URL trains in a local copy, so no step waits for the network. A thread uploads what is
complete, and the next attempt, on any machine, starts from what the store has.

urls.py        which URLs are valid, how fsspec opens them, time limits
store.py       upload and download single objects: retries, time limits, digests
layout.py      what belongs together in a run directory, locally and in the store
cache.py       local copies: where they are, and how they are fetched
lease.py       one machine at a time trains a run
mirror.py      uploads a run in a safe order, in a thread
run_copies.py  the entry points: a local directory for a run in a store
files.py       data files, fetched once; results, published
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
