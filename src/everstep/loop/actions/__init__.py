"""Actions: what is called with the logs after a loop or an evaluation, and what a run brings along of them.

The public names are in `everstep.actions`.
"""
