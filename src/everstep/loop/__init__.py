"""The loop: `trainer.py` runs steps, `controller.py` decides when; `everstep.experiment` joins them."""
