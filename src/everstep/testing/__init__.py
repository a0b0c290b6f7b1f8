"""Contract suites and tiny tasks, for our tests and for those of extensions.

engines/         the contract of an `Engine`
streams.py       the contract of a `Stream`: positions, resuming, blocks, rows of processes
trackers.py      the contract of a `Tracker`: each point once after a resume
exports.py       the contract of an export format
entry_points.py  the contract of an entry point: resumes after a kill, refuses changes
problems.py      assertions on the fields of an error
tasks.py         small tasks, and a rig that runs one on an engine
models.py        small models, with every kind of layer that engines treat differently
hub.py           tiny KerasHub presets
reliability/     runs of our own experiments that are killed, signalled and damaged; for a user's task:
                 `fast_dev_run.py`
servers/         servers that can be stopped, paused and slowed down
"""
