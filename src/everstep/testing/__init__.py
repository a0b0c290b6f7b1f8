"""Contract suites and tiny tasks, for our tests and for those of extensions.

engines/        the contract of an `Engine`
streams.py      the contract of a `Stream`
trackers.py     the contract of a `Tracker`
exports.py      the contract of an export format
entry_points.py the contract of an entry point
problems.py     assertions on the fields of an error
tasks.py        small tasks, and a rig that runs one on an engine
models.py       small models, with every kind of layer that engines treat differently
hub.py          tiny KerasHub presets
reliability/    runs that are killed, signalled and damaged, and what is promised of them
servers/        servers that can be stopped, paused and slowed down
"""
