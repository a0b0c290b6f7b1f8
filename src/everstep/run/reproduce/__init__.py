"""Reproduce: a run is repeated from its record, and compared with it bit by bit.

`evidence.py` reads what a run has left on disk; `repetition.py` repeats it in another process; `comparison.py` finds
the first difference and its cause; `reproducing.py` is the entry point, and repeats a run again where that tells more.
"""
