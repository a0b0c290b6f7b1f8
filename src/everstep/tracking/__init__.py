"""Trackers: where the numbers of a run are written while it trains.

`tracker.py` has the interface and the trackers that wrap others; each sink has a file of its own.

`run/trackers.py` creates those that a run is configured with.
"""
