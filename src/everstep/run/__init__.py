"""Record: what a run is, where it stands, and what made it.

`record.py` keeps `run.json`; `digest.py` and `environment.py` compute what stands in it.
"""
