"""Checkpoints: the state of a run on disk, each one complete or invisible.

checkpointer.py  the interface: save, wait, restore
orbax.py         the checkpointer that writes, in the background
arrays.py        the arrays and the JSON document of one checkpoint, by Orbax
parts.py         arrays that are divided over several processes
shared.py        the checkpoints of several processes
visible.py       whether all of them see the same directory
manifest.py      what was saved, by which run, and a digest of every file
retention.py     which checkpoints are kept
partial_read.py  some arrays of a checkpoint that may not be trusted
averaging.py     the average of several checkpoints
remote/          runs and data on object stores
"""
