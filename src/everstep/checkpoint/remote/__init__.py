"""Runs and data on object stores: `gs://`, `s3://`, any URL that fsspec knows.

A run whose directory is a URL works in a local copy, as every run does, so no step waits for a network. A thread
carries what is complete to the store, and the next attempt, on whichever machine, begins with what is there.

    urls.py     what is a URL, and how fsspec opens it
    store.py    one object there and back: retries, time limits, digests
    layout.py   what belongs together in a run directory, here and there
    cache.py    local copies, and how they are fetched
    lease.py    one machine at a time
    mirror.py   from this machine to the store, and the thread that does it
    working.py  all of it around a run
    files.py    data files, fetched once; results, published
"""

from everstep.checkpoint.remote.files import local_files, publish
from everstep.checkpoint.remote.urls import is_url
from everstep.checkpoint.remote.working import local_runs, local_view, working_copy

__all__ = ["is_url", "local_files", "local_runs", "local_view", "publish", "working_copy"]
