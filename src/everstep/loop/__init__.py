"""The loop: `controller.py` decides when to train, evaluate, save and act; `trainer.py` runs the steps.

`schedule.py` tells where windows end and what is due there, `hooks.py` is how others take part, `saver.py` puts a
checkpoint together, `recovery.py` handles divergence. `keras_callbacks.py` calls Keras callbacks as a hook, and
`callback_state.py` saves their state. `orbit.py` and `standard.py` are for programs written for orbit.
`create_trainer.py` creates a trainer from a configuration, in stages if the task is a policy of `progressive.py`.
`everstep.experiment` joins everything.
"""
