"""Trackers: where the numbers of a run are written while it trains.

`tracker.py` has the interface and the trackers that wrap others; each sink has a file of its own.
"""
