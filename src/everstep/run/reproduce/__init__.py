"""Reproduce: a run is done again from its record, and compared with it bit by bit.

`evidence.py` reads what a run left; `repeating.py` says how it is done again, `process.py` does it; `outcome.py` finds
where the two part, `causes.py` why; `verdict.py` says it. `trials.py` does it once more, or with the code of the record
(`recorded_code.py`), where that tells more; `frontends/project_copies.py` keeps a project untouched meanwhile.
"""
