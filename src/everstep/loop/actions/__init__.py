"""Actions: called with the logs after each loop or evaluation.

`from_config.py` creates those that a configuration lists, `registry.py` knows them by name. The public names are in
`everstep.actions`.
"""
