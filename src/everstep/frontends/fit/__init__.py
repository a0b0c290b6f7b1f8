"""`everstep.fit`: the arguments of `model.fit`, made into an experiment; `fit.py` joins what the others read."""
