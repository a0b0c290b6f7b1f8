"""The command of backward-compatible training. Its module is imported when it is called.

bct.py  `everstep bct evaluate`: its options and defaults, the table
"""

from everstep.cli import Command

BCT = Command("Tools", "Backward-compatible training: compare embedding models.", "everstep.recipes.bct.commands.bct")
