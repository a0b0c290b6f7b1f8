"""Observe: where the numbers of a run go while it trains.

`tracker.py` has the interface and the plain doubles; one file per sink beside it.
"""
