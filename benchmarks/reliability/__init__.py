"""What is promised of runs that are killed, signalled and damaged, measured; see `everstep.testing.reliability`."""

BACKENDS = ("tensorflow", "jax")
