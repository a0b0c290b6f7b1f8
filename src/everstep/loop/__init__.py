"""The loop: `trainer.py` runs steps, `controller.py` decides when. ExperimentConfig is in `everstep.experiment_config`."""
