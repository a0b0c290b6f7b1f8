"""Runs and data on object stores: `gs://`, `s3://`, any URL that fsspec knows.

A run whose directory is a URL works in a local copy, as every run does, so no step waits for a network. A thread
carries what is complete to the store, and the next attempt, on whichever machine, begins with what is there.

    urls.py        what is a URL, and which are refused
    filesystem.py  fsspec, opened with what the environment says
    failures.py    what a store can answer: no, not now, not as it was
    checksums.py   what a store says of an object, against the file it was
    transfer.py    one object there and back: retries, time limits, digests
    layout.py      what belongs together in a run directory, here and there
    index.py       the digests of a run's single files
    fetching.py    from the store to this machine
    mirror.py      from this machine to the store
    uploader.py    the thread that does it
    process.py     which process this is, for others to look for
    lease.py       one machine at a time
    held.py        a store that only the holder of its lease writes to
    cache.py       where local copies live
    working.py     all of it around a run
    data.py        data files, fetched once
    publishing.py  results for others to read
"""

from everstep.remote.data import local_files
from everstep.remote.publishing import publish
from everstep.remote.urls import is_url
from everstep.remote.working import local_runs, local_view, working_copy

__all__ = ["is_url", "local_files", "local_runs", "local_view", "publish", "working_copy"]
