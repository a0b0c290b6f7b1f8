"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

The public names are in `everstep.bct`.
"""
