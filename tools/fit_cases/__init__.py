"""`everstep.fit` beside `model.fit`, in many small cases: `python -m tools.fit_cases --help`."""
