"""`everstep.fit`: the arguments of `model.fit`, on the loop."""
